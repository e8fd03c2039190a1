#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <zero3/half.h>

namespace zero3 {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// The 16-bit value nearest to `x`, ties to the even one, found by comparing distances in double.
/// `largest` is the largest finite one, above which by half a step everything is infinite.
template <class Half>
std::uint16_t nearest_by_search(float x, std::uint16_t largest) {
  const auto value = [](std::uint32_t bits) {
    Half half;
    half.bits = static_cast<std::uint16_t>(bits);
    return static_cast<double>(static_cast<float>(half));
  };
  const double magnitude = std::abs(static_cast<double>(x));
  std::uint32_t low = 0;
  std::uint32_t high = largest;
  while (low < high) {  // the last one that is not above
    const std::uint32_t middle = (low + high + 1) / 2;
    (value(middle) <= magnitude ? low : high) = value(middle) <= magnitude ? middle : middle - 1;
  }
  const double below = magnitude - value(low);
  const double step = low == largest ? value(low) - value(low - 1) : value(low + 1) - value(low);
  const bool up = below > step / 2 || (below == step / 2 && low % 2 == 1);
  const std::uint32_t sign = std::signbit(x) ? 0x8000U : 0U;
  return static_cast<std::uint16_t>(sign | (low + (up ? 1U : 0U)));
}

static_assert(static_cast<float>(BFloat16(1.0F)) == 1.0F && BFloat16(1.0F).bits == 0x3f80);
static_assert(static_cast<float>(Float16(1.0F)) == 1.0F && Float16(1.0F).bits == 0x3c00);
static_assert(Float16(65504.0F).bits == 0x7bff && Float16(65519.0F).bits == 0x7bff);
static_assert(Float16(65520.0F).bits == 0x7c00 && Float16(kInfinity).bits == 0x7c00);
static_assert(Float16(-65520.0F).bits == 0xfc00);
static_assert(Float16(0x1p-24F).bits == 0x0001 && Float16(0x1p-25F).bits == 0x0000);
static_assert(Float16(0x1.000002p-25F).bits == 0x0001 && Float16(-0.0F).bits == 0x8000);
static_assert(BFloat16(1.0F + 0x1p-8F).bits == 0x3f80, "a tie goes to the even one");
static_assert(BFloat16(1.0F + 0x3p-8F).bits == 0x3f82, "a tie goes to the even one");
static_assert(BFloat16(std::numeric_limits<float>::max()).bits == 0x7f80);

TEST(BFloat16, KeepsEveryValueOfItsOwn) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    BFloat16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    const auto value = static_cast<float>(half);
    if (std::isnan(value)) continue;
    ASSERT_EQ(BFloat16(value).bits, bits);
  }
}

TEST(Float16, KeepsEveryValueOfItsOwn) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    Float16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    const auto value = static_cast<float>(half);
    if (std::isnan(value)) continue;
    ASSERT_EQ(Float16(value).bits, bits);
  }
}

TEST(BFloat16, RoundsToTheNearest) {
  for (std::uint64_t u = 0; u < 0x7f800000; u += 99991) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(u));
    ASSERT_EQ(BFloat16(x).bits, nearest_by_search<BFloat16>(x, 0x7f7f)) << x;
    ASSERT_EQ(BFloat16(-x).bits, nearest_by_search<BFloat16>(-x, 0x7f7f)) << -x;
  }
}

TEST(Float16, RoundsToTheNearest) {
  // From 2^-27 to 2^17: subnormals, normals and what overflows.
  for (std::uint32_t u = 0x32000000; u < 0x48000000; u += 9973) {
    const auto x = std::bit_cast<float>(u);
    const std::uint16_t expected =
        x >= 65520.0F ? std::uint16_t{0x7c00} : nearest_by_search<Float16>(x, 0x7bff);
    ASSERT_EQ(Float16(x).bits, expected) << x;
  }
}

TEST(Float16, RoundsTiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    Float16 low;
    Float16 high;
    low.bits = static_cast<std::uint16_t>(bits);
    high.bits = static_cast<std::uint16_t>(bits + 1);
    const float middle = 0.5F * (static_cast<float>(low) + static_cast<float>(high));
    ASSERT_EQ(Float16(middle).bits, bits + (bits & 1U)) << middle;
  }
}

TEST(BFloat16, StaysNaN) {
  for (const std::uint32_t u : {0x7f800001U, 0x7fc00000U, 0x7fffffffU, 0xffffffffU, 0xff800001U}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(u))))) << u;
  }
}

TEST(Float16, StaysNaN) {
  EXPECT_TRUE(std::isnan(static_cast<float>(Float16(kNaN))));
  for (const std::uint32_t u : {0x7f800001U, 0x7fffffffU, 0xffffffffU, 0xff800001U}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(Float16(std::bit_cast<float>(u))))) << u;
  }
}

TEST(Half, KeepsInfinityAndSign) {
  EXPECT_EQ(static_cast<float>(BFloat16(-kInfinity)), -kInfinity);
  EXPECT_EQ(static_cast<float>(Float16(-kInfinity)), -kInfinity);
  EXPECT_TRUE(std::signbit(static_cast<float>(BFloat16(-0.0F))));
  EXPECT_TRUE(std::signbit(static_cast<float>(Float16(-0.0F))));
}

}  // namespace
}  // namespace zero3
