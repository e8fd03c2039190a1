#include <zero3/rope.h>

#include <gtest/gtest.h>

#include <cmath>

#include <zero3/error.h>

#include "data/rope_reference.inc"

namespace zero3::test {
namespace {

namespace reference = rope_reference;
using Scaling = RopeConfig::Scaling;

/// transformers computes angles in fp32: frequencies and their products with a position round.
void expect_matches(const RopeConfig& config, const std::vector<float>& want) {
  const std::int64_t half = config.head_dim / 2;
  const RopeTable table = make_rope_table(config, reference::kPositions.back() + 1);
  const auto rows = static_cast<std::int64_t>(reference::kPositions.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t position = reference::kPositions[static_cast<std::size_t>(row)];
    for (std::int64_t i = 0; i < half; ++i) {
      const auto got = static_cast<std::size_t>(position * half + i);
      const auto cos = static_cast<std::size_t>(row * half + i);
      const auto sin = cos + static_cast<std::size_t>(rows * half);
      const double tolerance = 4e-7 + 3e-7 * static_cast<double>(position);
      EXPECT_NEAR(table.cos[got], want[cos], tolerance) << "position " << position << " pair " << i;
      EXPECT_NEAR(table.sin[got], want[sin], tolerance) << "position " << position << " pair " << i;
    }
  }
}

TEST(RopeTable, UnscaledMatchesTransformers) {
  expect_matches({.head_dim = 64, .theta = 10000.0}, reference::kDefault);
}

TEST(RopeTable, LinearMatchesTransformers) {
  expect_matches({.head_dim = 64, .theta = 10000.0, .scaling = Scaling::kLinear, .factor = 4.0},
                 reference::kLinear);
}

TEST(RopeTable, Llama3MatchesTransformers) {
  expect_matches({.head_dim = 64,
                  .theta = 500000.0,
                  .scaling = Scaling::kLlama3,
                  .factor = 8.0,
                  .original_max_position = 8192,
                  .low_freq_factor = 1.0,
                  .high_freq_factor = 4.0},
                 reference::kLlama3);
}

TEST(RopeTable, YarnMatchesTransformers) {
  expect_matches({.head_dim = 64,
                  .theta = 1000000.0,
                  .scaling = Scaling::kYarn,
                  .factor = 4.0,
                  .original_max_position = 32768},
                 reference::kYarn);
}

TEST(RopeTable, YarnWithItsOwnFactorsMatchesTransformers) {
  expect_matches({.head_dim = 64,
                  .theta = 10000.0,
                  .scaling = Scaling::kYarn,
                  .factor = 16.0,
                  .original_max_position = 8192,
                  .beta_fast = 24.0,
                  .beta_slow = 2.0,
                  .attention_factor = 1.5},
                 reference::kYarnAttention);
}

TEST(RopeTable, FarPositionsAreExact) {
  const std::int64_t position = 131071;
  const RopeTable table = make_rope_table({.head_dim = 8, .theta = 10000.0}, position + 1);
  for (std::int64_t i = 0; i < 4; ++i) {
    const double angle = static_cast<double>(position) * std::pow(10.0, -static_cast<double>(i));
    const auto at = static_cast<std::size_t>(position * 4 + i);
    EXPECT_NEAR(table.cos[at], std::cos(angle), 1e-7);
    EXPECT_NEAR(table.sin[at], std::sin(angle), 1e-7);
  }
}

TEST(RopeTable, NoPositionsAreAnEmptyTable) {
  EXPECT_TRUE(make_rope_table({.head_dim = 8}, 0).cos.empty());
}

TEST(RopeTable, RefusesAnOddHeadDim) {
  EXPECT_THROW((void)make_rope_table({.head_dim = 7}, 4), UsageError);
}

TEST(RopeTable, RefusesAFactorOfZero) {
  EXPECT_THROW(
      (void)make_rope_table({.head_dim = 8, .scaling = Scaling::kLinear, .factor = 0.0}, 4),
      UsageError);
}

TEST(RopeTable, Llama3NeedsTheOriginalLength) {
  EXPECT_THROW(
      (void)make_rope_table({.head_dim = 8, .scaling = Scaling::kLlama3, .factor = 8.0}, 4),
      UsageError);
}

TEST(RopeTable, Llama3RefusesEqualFrequencyFactors) {
  EXPECT_THROW((void)make_rope_table({.head_dim = 8,
                                      .scaling = Scaling::kLlama3,
                                      .factor = 8.0,
                                      .original_max_position = 8192,
                                      .low_freq_factor = 4.0,
                                      .high_freq_factor = 4.0},
                                     4),
               UsageError);
}

}  // namespace
}  // namespace zero3::test
