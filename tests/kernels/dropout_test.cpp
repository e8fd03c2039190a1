#include <zero3/dropout.h>

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include <zero3/copy.h>

#include "support/backends.h"
#include "support/contains.h"
#include "support/thrown.h"

namespace zero3 {
namespace {

using test::contains;
using test::thrown;

constexpr std::int64_t kRows = 64, kWidth = 30;
constexpr float kProbability = 0.25F;
constexpr DropoutDraw kDraw = {.key = philox_key(7, 1), .step = 3, .site = 5, .first_token = 1000};

class Dropout : public ::testing::TestWithParam<DeviceKind> {
 protected:
  Dropout() : bench_(GetParam(), 2) {}

  [[nodiscard]] std::vector<float> drop(const std::vector<float>& x, float probability,
                                        const DropoutDraw& draw) {
    const Buffer in = bench_.upload(x);
    const Buffer out = bench_.allocate(static_cast<std::int64_t>(x.size()));
    dropout(out.view(), in.view(), kWidth, probability, draw, *bench_.stream);
    return bench_.download<float>(out.view());
  }
  test::Bench bench_;
  const std::vector<float> ones_ = std::vector<float>(kRows * kWidth, 1.0F);
};

TEST_P(Dropout, DropsThatShareAndScalesTheRest) {
  const std::vector<float> out = drop(ones_, kProbability, kDraw);
  int dropped = 0;
  for (const float value : out) {
    if (value == 0) ++dropped;
    EXPECT_TRUE(value == 0 || value == 1.0F / (1.0F - kProbability));
  }
  // Five standard deviations of the binomial distribution.
  const double deviation = std::sqrt(kRows * kWidth * kProbability * (1 - kProbability));
  EXPECT_NEAR(dropped, kRows * kWidth * kProbability, 5 * deviation);
}

TEST_P(Dropout, DrawsAreThoseOfTheFormula) {
  const std::vector<float> out = drop(ones_, kProbability, kDraw);
  const PhiloxCounter step = philox({3, 0, 0, 0}, kDraw.key);
  for (const std::int64_t row : {std::int64_t{0}, kRows - 1}) {
    for (std::int64_t c = 0; c < kWidth; ++c) {
      const auto token = static_cast<std::uint32_t>(1000 + row);
      const PhiloxCounter words =
          philox({token, 0, static_cast<std::uint32_t>(c / 4), 5}, {step[0], step[1]});
      const bool kept = words[static_cast<std::size_t>(c % 4)] >= 0x40000000U;
      EXPECT_EQ(out[static_cast<std::size_t>(row * kWidth + c)] != 0, kept) << row << ' ' << c;
    }
  }
}

// H5: a tile draws what the whole draws for its rows.
TEST_P(Dropout, TilesDrawTheSame) {
  const std::vector<float> whole = drop(ones_, kProbability, kDraw);
  const Buffer in = bench_.upload(ones_);
  for (const std::int64_t rows : {1, 7, 63}) {
    for (std::int64_t begin = 0; begin < kRows; begin += rows) {
      const std::int64_t count = std::min(rows, kRows - begin) * kWidth;
      const TensorView tile = in.view().slice(begin * kWidth, count);
      fill_zero(tile, *bench_.stream);
      copy_from_host(tile, ones_.data(), *bench_.stream);
      DropoutDraw draw = kDraw;
      draw.first_token += begin;
      dropout(tile, tile, kWidth, kProbability, draw, *bench_.stream);
    }
    EXPECT_EQ(bench_.download<float>(in.view()), whole) << rows;
  }
}

TEST_P(Dropout, EveryPartOfTheDrawMatters) {
  const std::vector<float> out = drop(ones_, kProbability, kDraw);
  DropoutDraw other = kDraw;
  other.step += std::int64_t{1} << 40;
  EXPECT_NE(drop(ones_, kProbability, other), out);
  other = kDraw;
  other.site = 6;
  EXPECT_NE(drop(ones_, kProbability, other), out);
  other = kDraw;
  other.key = philox_key(8, 1);
  EXPECT_NE(drop(ones_, kProbability, other), out);
  other = kDraw;
  other.first_token += std::int64_t{1} << 33;
  EXPECT_NE(drop(ones_, kProbability, other), out);
}

TEST_P(Dropout, ProbabilityZeroChangesNothing) {
  EXPECT_EQ(drop(ones_, 0.0F, kDraw), ones_);
}

TEST_P(Dropout, RefusesWhatIsNoProbability) {
  for (const float p : {1.0F, -0.1F, NAN}) {
    EXPECT_TRUE(contains(thrown<UsageError>([&] { static_cast<void>(drop(ones_, p, kDraw)); }),
                         {"dropout with probability"}));
  }
}

INSTANTIATE_TEST_SUITE_P(, Dropout, ::testing::Values(DeviceKind::kCpu, DeviceKind::kCpuSim),
                         [](const auto& test_case) {
                           return test_case.param == DeviceKind::kCpu ? "Cpu" : "CpuSim";
                         });

}  // namespace
}  // namespace zero3
