#include <zero3/elementwise.h>

#include <gtest/gtest.h>

#include "values.h"

namespace zero3::test {
namespace {

template <class Out, class A, class B>
void expect_adds_and_rounds_once() {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t count : kSizes) {
    const auto a = convert<A>(normal_values(count, 1));
    const auto b = convert<B>(normal_values(count, 2));
    std::vector<Out> want;
    for (std::size_t i = 0; i < a.size(); ++i) {
      want.push_back(static_cast<Out>(static_cast<float>(a[i]) + static_cast<float>(b[i])));
    }
    const Buffer out = bench.allocate(count, kDTypeOf<Out>);
    const Buffer left = bench.upload(a), right = bench.upload(b);
    add(out.view(), left.view(), right.view(), *bench.stream);
    EXPECT_EQ(bits_of(bench.download<Out>(out.view())), bits_of(want)) << count;
  }
}

TEST(Add, Fp32) {
  expect_adds_and_rounds_once<float, float, float>();
}
TEST(Add, Bf16) {
  expect_adds_and_rounds_once<BFloat16, BFloat16, BFloat16>();
}
TEST(Add, Bf16IntoFp32) {
  expect_adds_and_rounds_once<float, float, BFloat16>();
}
TEST(Add, Fp32IntoBf16) {
  expect_adds_and_rounds_once<BFloat16, BFloat16, float>();
}

TEST(Add, OutMayBeEitherOperand) {
  SteppedBench stepped;
  Bench& bench = stepped.bench;
  const auto a = normal_values(1025, 1), b = normal_values(1025, 2);
  std::vector<float> want;
  for (std::size_t i = 0; i < a.size(); ++i) want.push_back(a[i] + b[i]);
  const Buffer left = bench.upload(a), right = bench.upload(b);
  add(right.view(), left.view(), right.view(), *bench.stream);
  EXPECT_EQ(bench.download<float>(right.view()), want);
  const Buffer other = bench.upload(b);
  add(left.view(), left.view(), other.view(), *bench.stream);
  EXPECT_EQ(bench.download<float>(left.view()), want);
}

TEST(Add, AValueMayBeAddedToItself) {
  Bench bench;
  const auto a = normal_values(33, 1);
  const Buffer x = bench.upload(a);
  add(x.view(), x.view(), x.view(), *bench.stream);
  std::vector<float> want;
  for (const float value : a) want.push_back(value + value);
  EXPECT_EQ(bench.download<float>(x.view()), want);
}

TEST(Add, RefusesPartialOverlap) {
  Bench bench;
  const Buffer x = bench.allocate(16), y = bench.allocate(8);
  EXPECT_THROW(add(x.view().slice(0, 8), x.view().slice(1, 8), y.view(), *bench.stream),
               UsageError);
}

TEST(Add, RefusesOneMemoryAsTwoTypes) {
  Bench bench;
  const Buffer x = bench.allocate(8), y = bench.allocate(8);
  const TensorView narrow = x.view().as(DType::kBF16).slice(0, 8);
  EXPECT_THROW(add(narrow, x.view(), y.view(), *bench.stream), UsageError);
}

TEST(Add, RefusesUnequalSizes) {
  Bench bench;
  const Buffer x = bench.allocate(8), y = bench.allocate(8), z = bench.allocate(9);
  EXPECT_THROW(add(x.view(), y.view(), z.view(), *bench.stream), UsageError);
}

TEST(Add, SameBitsOnEveryDevice) {
  expect_same_bits_on_every_device([](Bench& bench) {
    const Buffer x = bench.upload(normal_values(1025, 1)), y = bench.upload(normal_values(1025, 2));
    const Buffer out = bench.allocate(1025, DType::kBF16);
    add(out.view(), x.view(), y.view(), *bench.stream);
    return bench.download<BFloat16>(out.view());
  });
}

TEST(Scale, MultipliesEachElement) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t count : kSizes) {
    std::vector<float> want = normal_values(count, 1);
    const Buffer x = bench.upload(want), out = bench.allocate(count);
    scale(out.view(), x.view(), 0.3F, *bench.stream);
    for (float& value : want) value *= 0.3F;
    EXPECT_EQ(bench.download<float>(out.view()), want) << count;
  }
}

TEST(Scale, OutMayBeX) {
  SteppedBench stepped;
  Bench& bench = stepped.bench;
  std::vector<float> want = normal_values(1025, 1);
  const Buffer x = bench.upload(want);
  scale(x.view(), x.view(), -2.0F, *bench.stream);
  for (float& value : want) value *= -2.0F;
  EXPECT_EQ(bench.download<float>(x.view()), want);
}

TEST(Scale, RefusesUnequalSizes) {
  Bench bench;
  const Buffer x = bench.allocate(8), y = bench.allocate(9);
  EXPECT_THROW(scale(x.view(), y.view(), 1.0F, *bench.stream), UsageError);
}

}  // namespace
}  // namespace zero3::test
