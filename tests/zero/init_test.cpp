#include "init.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/engine_ops.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

static_assert(name_hash("") == 0xcbf29ce484222325U);
static_assert(name_hash("a") == 0xaf63dc4c8601ec8cU);
static_assert(name_hash("foobar") == 0x85944171f73967e8U);

std::vector<float> drawn(const ParamSpec& param, std::int64_t first, std::size_t count,
                         std::uint64_t seed = 1) {
  std::vector<float> values(count);
  initial_values(values, param, first, seed);
  return values;
}

ParamSpec normal(std::string name) {
  return {.name = std::move(name), .shape = {4096}, .init = Init::normal(0.5F)};
}

TEST(Init, ValuesDoNotDependOnHowTheyAreCut) {
  const std::vector<float> whole = drawn(normal("w"), 0, 64);
  for (std::size_t first = 0; first < 12; ++first) {
    for (std::size_t count = 0; count < 12; ++count) {
      const std::vector<float> piece = drawn(normal("w"), static_cast<std::int64_t>(first), count);
      EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + static_cast<int>(first)))
          << count << " from " << first;
    }
  }
}

TEST(Init, ElementsBeyondFourBillionAreTheirOwn) {
  const std::int64_t far = std::int64_t{1} << 34;
  EXPECT_NE(drawn(normal("w"), far, 8), drawn(normal("w"), 0, 8));
}

TEST(Init, NormalValuesHaveMeanZeroAndTheDeviation) {
  const std::vector<float> values = drawn(normal("w"), 0, 1 << 16);
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const auto count = static_cast<double>(values.size());
  // Five standard errors of the mean, and of the deviation.
  EXPECT_NEAR(sum / count, 0.0, 5 * 0.5 / 256);
  EXPECT_NEAR(std::sqrt(squares / count), 0.5, 5 * 0.5 / 256 / std::sqrt(2.0));
}

TEST(Init, SeedsDiffer) {
  EXPECT_NE(drawn(normal("w"), 0, 16, 1), drawn(normal("w"), 0, 16, 2));
}
// F2
TEST(Init, ParametersOfOneShapeDiffer) {
  EXPECT_NE(drawn(normal("a"), 0, 16), drawn(normal("b"), 0, 16));
}
TEST(Init, ZerosAndOnes) {
  EXPECT_EQ(drawn({.name = "z", .shape = {3}, .init = Init::zeros()}, 0, 3),
            std::vector<float>(3, 0.0F));
  EXPECT_EQ(drawn({.name = "o", .shape = {3}, .init = Init::ones()}, 1, 2),
            std::vector<float>(2, 1.0F));
}

std::vector<std::vector<float>> first_weights(int world_size) {
  std::vector<std::vector<float>> all;
  run_ranks(world_size, [&](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.seed = 42});
    engine.add_group({.name = "g",
                      .params = {normal("a"),
                                 {.name = "none", .shape = {0}},
                                 {.name = "odd", .shape = {7, 149}},
                                 {.name = "one", .shape = {1}, .init = Init::ones()}}});
    engine.build();
    for (const char* name : {"a", "none", "odd", "one"}) {
      const std::vector<float> values = engine.read_parameter(name);
      if (rank.rank == 0) all.push_back(values);
    }
  });
  return all;
}

// F2
TEST(Init, FirstWeightsAreThoseOfTheRuleForEveryWorldSize) {
  const std::vector<std::vector<float>> want = {
      drawn(normal("a"), 0, 4096, 42),
      {},
      drawn({.name = "odd", .shape = {7, 149}}, 0, 7 * 149, 42),
      {1.0F}};
  for (const int world_size : {1, 2, 3, 4, 7}) {
    EXPECT_EQ(first_weights(world_size), want) << world_size << " ranks";
  }
}

}  // namespace
}  // namespace zero3::test
