#include <zero3/reduce.h>

#include <gtest/gtest.h>

#include <limits>

#include "values.h"

namespace zero3::test {
namespace {

template <class T>
T result_of(Bench& bench, const Buffer& out) {
  return bench.download<T>(out.view()).at(0);
}

template <class Source, class Wire>
void expect_folds() {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t count : kSizes) {
    const auto source = convert<Source>(normal_values(count, 1));
    const auto wired = convert<float>(convert<Wire>(source));
    std::vector<float> want = normal_values(count, 2);
    const Buffer accumulator = bench.upload(want), from = bench.upload(source);
    fold(accumulator.view(), from.view(), kDTypeOf<Wire>, Into::kAccumulate, *bench.stream);
    for (std::size_t i = 0; i < want.size(); ++i) want[i] += wired[i];
    EXPECT_EQ(bits_of(bench.download<float>(accumulator.view())), bits_of(want)) << count;
    fold(accumulator.view(), from.view(), kDTypeOf<Wire>, Into::kReplace, *bench.stream);
    EXPECT_EQ(bits_of(bench.download<float>(accumulator.view())), bits_of(wired)) << count;
  }
}

TEST(Fold, Fp32OverFp32) {
  expect_folds<float, float>();
}
TEST(Fold, Fp32OverBf16) {
  expect_folds<float, BFloat16>();
}
TEST(Fold, Fp32OverFp16) {
  expect_folds<float, Float16>();
}
TEST(Fold, Bf16OverBf16) {
  expect_folds<BFloat16, BFloat16>();
}
TEST(Fold, Bf16OverFp32) {
  expect_folds<BFloat16, float>();
}
TEST(Fold, Bf16OverFp16) {
  expect_folds<BFloat16, Float16>();
}
TEST(Fold, Fp16OverFp16) {
  expect_folds<Float16, Float16>();
}
TEST(Fold, Fp16OverBf16) {
  expect_folds<Float16, BFloat16>();
}

TEST(Fold, ReplacingKeepsTheSignOfZero) {
  Bench bench;
  const Buffer accumulator = bench.upload(std::vector<float>(9, 1.0F));
  const Buffer source = bench.upload(std::vector<float>(9, -0.0F));
  fold(accumulator.view(), source.view(), DType::kF32, Into::kReplace, *bench.stream);
  EXPECT_EQ(bits_of(bench.download<float>(accumulator.view())),
            bits_of(std::vector<float>(9, -0.0F)));
}

TEST(Fold, ReplacingItselfRoundsInPlace) {
  SteppedBench stepped;
  Bench& bench = stepped.bench;
  const auto values = normal_values(1025, 1);
  const Buffer x = bench.upload(values);
  fold(x.view(), x.view(), DType::kBF16, Into::kReplace, *bench.stream);
  EXPECT_EQ(bits_of(bench.download<float>(x.view())),
            bits_of(convert<float>(convert<BFloat16>(values))));
}

TEST(Fold, RefusesUnequalSizes) {
  Bench bench;
  const Buffer a = bench.allocate(8), b = bench.allocate(9);
  EXPECT_THROW(fold(a.view(), b.view(), DType::kF32, Into::kReplace, *bench.stream), UsageError);
}

TEST(Fold, RefusesAnIntegerWire) {
  Bench bench;
  const Buffer a = bench.allocate(8), b = bench.allocate(8);
  EXPECT_THROW(fold(a.view(), b.view(), DType::kI32, Into::kReplace, *bench.stream), UsageError);
}

double sum_of(Bench& bench, const std::vector<double>& values) {
  const Buffer x = bench.upload(values), out = bench.allocate(1, DType::kF64);
  sum_in_order(out.view(), x.view(), *bench.stream);
  return result_of<double>(bench, out);
}

TEST(SumInOrder, AddsFromTheFirstToTheLast) {
  Bench bench(DeviceKind::kCpu, 2);
  std::vector<double> values;
  double want = 0;
  for (const float value : normal_values(20011, 1)) {
    values.push_back(static_cast<double>(value) * 1.1);
    want += values.back();
  }
  EXPECT_EQ(sum_of(bench, values), want);
}

TEST(SumInOrder, NothingSumsToPlusZero) {
  Bench bench;
  EXPECT_EQ(bits_of(std::vector<double>{sum_of(bench, {})}), bits_of(std::vector<double>{0.0}));
}

TEST(SumInOrder, MinusZeroSumsToPlusZero) {
  Bench bench;
  EXPECT_EQ(bits_of(std::vector<double>{sum_of(bench, {-0.0, -0.0})}),
            bits_of(std::vector<double>{0.0}));
}

std::vector<double> square_sums(Bench& bench, const std::vector<float>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  const Buffer x = bench.upload(values);
  const Buffer sums = bench.allocate(div_ceil(count, kNormBlock), DType::kF64);
  block_square_sums(sums.view(), x.view(), *bench.stream);
  return bench.download<double>(sums.view());
}

TEST(BlockSquareSums, EachBlockIsSummedInIndexOrder) {
  Bench bench(DeviceKind::kCpu, 2);
  // Around one block, and around the 8 that are summed side by side.
  for (const std::int64_t count : {0, 1, 1023, 1024, 1025, 8191, 8192, 8193, 9216, 20011, 40960}) {
    const auto values = normal_values(count, 1);
    std::vector<double> want(static_cast<std::size_t>(div_ceil(count, kNormBlock)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      want[i / 1024] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    EXPECT_EQ(bits_of(square_sums(bench, values)), bits_of(want)) << count;
  }
}

TEST(BlockSquareSums, HugeValuesDoNotOverflow) {
  Bench bench;
  EXPECT_EQ(square_sums(bench, {3e38F}).at(0), static_cast<double>(3e38F) * 3e38F);
}

TEST(BlockSquareSums, NonFiniteValuesShowInTheirBlockAlone) {
  Bench bench;
  std::vector<float> values = normal_values(3 * 1024, 1);
  values[1030] = std::numeric_limits<float>::infinity();
  values[2 * 1024 + 5] = std::numeric_limits<float>::quiet_NaN();
  const auto sums = square_sums(bench, values);
  EXPECT_TRUE(std::isfinite(sums[0]));
  EXPECT_TRUE(std::isinf(sums[1]));
  EXPECT_TRUE(std::isnan(sums[2]));
}

TEST(BlockSquareSums, SameBitsForAnyThreads) {
  expect_same_bits_for_any_threads(
      [](Bench& bench) { return square_sums(bench, normal_values(100003, 1)); });
}

TEST(BlockSquareSums, SameBitsOnEveryDevice) {
  expect_same_bits_on_every_device(
      [](Bench& bench) { return square_sums(bench, normal_values(9001, 1)); });
}

TEST(BlockSquareSums, RefusesTooFewSums) {
  Bench bench;
  const Buffer x = bench.allocate(1025), sums = bench.allocate(1, DType::kF64);
  EXPECT_THROW(block_square_sums(sums.view(), x.view(), *bench.stream), UsageError);
}

template <class T>
std::int64_t first_of(Bench& bench, const std::vector<T>& values) {
  const Buffer x = bench.upload(values), out = bench.allocate(1, DType::kI64);
  first_nonfinite(out.view(), x.view(), *bench.stream);
  return result_of<std::int64_t>(bench, out);
}

TEST(FirstNonfinite, FiniteValuesGiveMinusOne) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t count : kSizes) {
    EXPECT_EQ(first_of(bench, normal_values(count, 1)), -1) << count;
  }
  EXPECT_EQ(first_of(bench, std::vector<float>{3.4e38F, -3.4e38F, 1e-45F, -0.0F}), -1);
}

TEST(FirstNonfinite, FindsEachKind) {
  Bench bench;
  const float inf = std::numeric_limits<float>::infinity();
  for (const float value : {inf, -inf, std::numeric_limits<float>::quiet_NaN(),
                            -std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(first_of(bench, std::vector<float>{1.0F, value}), 1);
  }
}

template <class T>
void expect_finds_the_first() {
  for (const int threads : {1, 2, 3}) {
    Bench bench(DeviceKind::kCpu, threads);
    for (const std::size_t at : {0U, 1U, 7U, 8U, 16383U, 16384U, 50000U, 70000U}) {
      auto values = convert<T>(normal_values(70001, 1));
      for (std::size_t i = at; i < values.size(); i += 97) {
        values[i] = static_cast<T>(std::numeric_limits<float>::infinity());
      }
      EXPECT_EQ(first_of(bench, values), static_cast<std::int64_t>(at)) << threads;
    }
  }
}

TEST(FirstNonfinite, FindsTheFirstInFp32) {
  expect_finds_the_first<float>();
}
TEST(FirstNonfinite, FindsTheFirstInBf16) {
  expect_finds_the_first<BFloat16>();
}
TEST(FirstNonfinite, FindsTheFirstInFp16) {
  expect_finds_the_first<Float16>();
}

TEST(FirstNonfinite, WorksOnSimulatedDevice) {
  Bench bench(DeviceKind::kCpuSim);
  std::vector<float> values = normal_values(100, 1);
  values[42] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(first_of(bench, values), 42);
}

std::uint64_t checksum_of(Bench& bench, const std::vector<float>& values,
                          std::int64_t first_index = 0) {
  const Buffer x = bench.upload(values), out = bench.allocate(1, DType::kU64);
  checksum(out.view(), x.view(), first_index, *bench.stream);
  return result_of<std::uint64_t>(bench, out);
}

TEST(Checksum, IsTheSumOfMixedElements) {
  for (const int threads : {1, 2, 3}) {
    Bench bench(DeviceKind::kCpu, threads);
    for (const std::int64_t count : {0, 1, 9, 1025, 70001}) {
      const auto values = normal_values(count, 1);
      std::uint64_t want = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        want += mix64(5 + i, std::bit_cast<std::uint32_t>(values[i]));
      }
      EXPECT_EQ(checksum_of(bench, values, 5), want) << count;
    }
  }
}

TEST(Checksum, DoesNotDependOnTheCut) {
  Bench bench;
  const auto values = normal_values(1000, 1);
  const std::vector<float> head(values.begin(), values.begin() + 333);
  const std::vector<float> tail(values.begin() + 333, values.end());
  EXPECT_EQ(checksum_of(bench, head) + checksum_of(bench, tail, 333), checksum_of(bench, values));
}

TEST(Checksum, TellsOrderAndSignsApart) {
  Bench bench;
  EXPECT_NE(checksum_of(bench, {1.0F, 2.0F}), checksum_of(bench, {2.0F, 1.0F}));
  EXPECT_NE(checksum_of(bench, {0.0F}), checksum_of(bench, {-0.0F}));
  EXPECT_NE(checksum_of(bench, {0.0F}), checksum_of(bench, {0.0F, 0.0F}));
}

/// Saved checksums have to stay valid: values computed with Python from the header's formula.
TEST(Checksum, MixIsFixedForAllTime) {
  EXPECT_EQ(mix64(0, 0), 0x48218226ff3cd4bfU);
  EXPECT_EQ(mix64(1, 0x3f800000U), 0x586d6aa95d8f3eafU);
  EXPECT_EQ(mix64(std::uint64_t{1} << 40, 0xffffffffU), 0xcc2fe8f5e63ab9dcU);
}

}  // namespace
}  // namespace zero3::test
