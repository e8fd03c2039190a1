#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>

#include <zero3/philox.h>

namespace zero3 {
namespace {

// The known answers that come with Random123 (file kat_vectors, "philox4x32 10").
static_assert(philox({0, 0, 0, 0}, {0, 0}) ==
              PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
              PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
              PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

static_assert(uniform_float(0) == 0.0F);
static_assert(uniform_float(0xffffffff) < 1.0F && uniform_float(0xffffffff) > 0.9999999F);
static_assert(uniform_float(0x80000000) == 0.5F);

TEST(PhiloxKey, DependsOnEveryPartOfSeedAndPurpose) {
  std::set<PhiloxKey> keys;
  for (int bit = 0; bit < 64; ++bit) keys.insert(philox_key(std::uint64_t{1} << bit, 0));
  for (std::uint32_t purpose = 0; purpose < 64; ++purpose) keys.insert(philox_key(0, purpose));
  EXPECT_EQ(keys.size(), 128U);
}

TEST(NormalPair, IsFiniteForEveryExtreme) {
  for (const std::uint32_t a : {0U, 1U, 0xffffffffU}) {
    for (const std::uint32_t b : {0U, 0x40000000U, 0xffffffffU}) {
      for (const float value : normal_pair(a, b))
        EXPECT_TRUE(std::isfinite(value)) << a << ' ' << b;
    }
  }
}

TEST(NormalPair, HasTheMomentsOfAStandardNormal) {
  constexpr int kPairs = 100000;
  double sum = 0;
  double squares = 0;
  double fourths = 0;
  double product = 0;
  for (std::uint32_t i = 0; i < kPairs; ++i) {
    const PhiloxCounter words = philox({i, 0, 0, 0}, philox_key(17, 1));
    const auto pair = normal_pair(words[0], words[1]);
    for (const double x : pair) {
      sum += x;
      squares += x * x;
      fourths += x * x * x * x;
    }
    product += static_cast<double>(pair[0]) * static_cast<double>(pair[1]);
  }
  const double n = 2.0 * kPairs;
  // Within five standard errors: variances of the estimates are 1, 2, 96 and 1 over their counts.
  EXPECT_NEAR(sum / n, 0.0, 5 * std::sqrt(1 / n));
  EXPECT_NEAR(squares / n, 1.0, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourths / n, 3.0, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(product / kPairs, 0.0, 5 * std::sqrt(1.0 / kPairs));
}

TEST(UniformFloat, HasMeanAndVarianceOfTheUnitInterval) {
  constexpr int kCount = 100000;
  double sum = 0;
  double squares = 0;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const double x = uniform_float(philox({i, 0, 0, 0}, {1, 2})[3]);
    sum += x;
    squares += (x - 0.5) * (x - 0.5);
  }
  EXPECT_NEAR(sum / kCount, 0.5, 5 * std::sqrt(1.0 / 12 / kCount));
  EXPECT_NEAR(squares / kCount, 1.0 / 12, 5 * std::sqrt(1.0 / 180 / kCount));
}

}  // namespace
}  // namespace zero3
