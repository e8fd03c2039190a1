#include <zero3/rope.h>

#include <gtest/gtest.h>

#include "values.h"

namespace zero3::test {
namespace {

RopeTable table_of(const RopeShape& shape) {
  return make_rope_table({.head_dim = shape.head_dim}, shape.seq);
}

template <class T>
std::vector<T> rotate(Bench& bench, const std::vector<T>& values, const RopeShape& shape,
                      RopeDirection direction = RopeDirection::kForward) {
  const RopeTable table = table_of(shape);
  const Buffer x = bench.upload(values);
  const Buffer cos = bench.upload(table.cos), sin = bench.upload(table.sin);
  rope(x.view(), cos.view(), sin.view(), shape, direction, *bench.stream);
  return bench.download<T>(x.view());
}

/// Each pair as a complex number, times e^(±i·angle).
std::vector<double> reference(const std::vector<float>& x, const RopeShape& shape, double sign) {
  std::vector<double> y(x.begin(), x.end());
  const std::int64_t half = shape.head_dim / 2;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      for (std::int64_t i = 0; i < half; ++i) {
        const auto a = static_cast<std::size_t>((row * shape.heads + head) * shape.head_dim + i);
        const auto b = a + static_cast<std::size_t>(half);
        const double angle =
            sign * static_cast<double>(row % shape.seq) *
            std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(shape.head_dim));
        y[a] = static_cast<double>(x[a]) * std::cos(angle) -
               static_cast<double>(x[b]) * std::sin(angle);
        y[b] = static_cast<double>(x[b]) * std::cos(angle) +
               static_cast<double>(x[a]) * std::sin(angle);
      }
    }
  }
  return y;
}

TEST(Rope, ForwardMatchesDouble) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t head_dim : {2, 6, 16, 18, 34, 64, 128}) {
    const RopeShape shape = {.rows = 10, .seq = 5, .heads = 3, .head_dim = head_dim};
    const auto x = normal_values(10 * 3 * head_dim, 1);
    EXPECT_LT(relative_error(rotate(bench, x, shape), reference(x, shape, 1.0)), 5e-7) << head_dim;
  }
}

TEST(Rope, BackwardIsTheTransposedRotation) {
  Bench bench(DeviceKind::kCpu, 2);
  const RopeShape shape = {.rows = 10, .seq = 10, .heads = 3, .head_dim = 34};
  const auto x = normal_values(10 * 3 * 34, 1);
  EXPECT_LT(
      relative_error(rotate(bench, x, shape, RopeDirection::kBackward), reference(x, shape, -1.0)),
      5e-7);
}

TEST(Rope, BackwardIsTheGradientOfForward) {
  Bench bench;
  const RopeShape shape = {.rows = 4, .seq = 4, .heads = 1, .head_dim = 6};
  const auto x = normal_values(24, 1), dy = normal_values(24, 2);
  const auto loss = [&](const std::vector<double>& at) {
    const std::vector<double> y = reference(std::vector<float>(at.begin(), at.end()), shape, 1.0);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(dy[i]) * y[i];
    return sum;
  };
  // The rotation is linear, so the gradient along each unit vector is the loss of that vector.
  std::vector<double> want;
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::vector<double> unit(x.size());
    unit[i] = 1.0;
    want.push_back(loss(unit));
  }
  EXPECT_LT(relative_error(rotate(bench, dy, shape, RopeDirection::kBackward), want), 5e-7);
}

TEST(Rope, PositionsStartAgainAfterSeqRows) {
  Bench bench;
  const auto once = normal_values(3 * 8, 1);
  std::vector<float> twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  const auto got = rotate(bench, twice, {.rows = 6, .seq = 3, .heads = 1, .head_dim = 8});
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + 24, got.begin() + 24));
}

TEST(Rope, TheFirstPositionIsLeftAlone) {
  Bench bench;
  const auto x = normal_values(16, 1);
  EXPECT_EQ(rotate(bench, x, {.rows = 1, .seq = 1, .heads = 2, .head_dim = 8}), x);
}

TEST(Rope, Bf16IsComputedInFp32AndRoundedOnce) {
  Bench bench;
  const RopeShape shape = {.rows = 10, .seq = 10, .heads = 3, .head_dim = 34};
  const auto x = convert<BFloat16>(normal_values(10 * 3 * 34, 1));
  EXPECT_EQ(bits_of(rotate(bench, x, shape)),
            bits_of(convert<BFloat16>(rotate(bench, convert<float>(x), shape))));
}

TEST(Rope, NoRowsAreNoWork) {
  Bench bench;
  EXPECT_TRUE(rotate(bench, std::vector<float>(), {.rows = 0, .seq = 4, .heads = 2, .head_dim = 8})
                  .empty());
}

TEST(Rope, SameBitsForAnyThreads) {
  const RopeShape shape = {.rows = 200, .seq = 100, .heads = 6, .head_dim = 64};
  expect_same_bits_for_any_threads(
      [&](Bench& bench) { return rotate(bench, normal_values(200 * 6 * 64, 1), shape); });
}

TEST(Rope, SameBitsOnEveryDevice) {
  const RopeShape shape = {.rows = 10, .seq = 10, .heads = 3, .head_dim = 34};
  expect_same_bits_on_every_device(
      [&](Bench& bench) { return rotate(bench, normal_values(10 * 3 * 34, 1), shape); });
}

TEST(Rope, RefusesATableOfAnotherLength) {
  Bench bench;
  const Buffer x = bench.allocate(4 * 8), cos = bench.allocate(3 * 4), sin = bench.allocate(4 * 4);
  EXPECT_THROW(
      rope(x.view(), cos.view(), sin.view(), {.rows = 4, .seq = 4, .heads = 1, .head_dim = 8},
           RopeDirection::kForward, *bench.stream),
      UsageError);
}

TEST(Rope, RefusesAnOddHeadDim) {
  Bench bench;
  const Buffer x = bench.allocate(4 * 7), table = bench.allocate(4 * 3);
  EXPECT_THROW(
      rope(x.view(), table.view(), table.view(), {.rows = 4, .seq = 4, .heads = 1, .head_dim = 7},
           RopeDirection::kForward, *bench.stream),
      UsageError);
}

}  // namespace
}  // namespace zero3::test
