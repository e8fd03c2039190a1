#include <zero3/cast.h>

#include <gtest/gtest.h>

#include <limits>

#include <support/contains.h>
#include <support/thrown.h>

#include "values.h"

namespace zero3::test {
namespace {

template <class To, class From>
std::vector<To> cast_values(Bench& bench, const std::vector<From>& values) {
  const Buffer source = bench.upload(values);
  const Buffer target = bench.allocate(static_cast<std::int64_t>(values.size()), kDTypeOf<To>);
  cast(target.view(), source.view(), *bench.stream);
  return bench.download<To>(target.view());
}

template <class To, class From>
void expect_converts_each_element() {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t count : kSizes) {
    const auto values = convert<From>(normal_values(count, 1));
    EXPECT_EQ(bits_of(cast_values<To>(bench, values)), bits_of(convert<To>(values))) << count;
  }
}

/// Ties, subnormals, overflow, infinities, zeros: what rounding can get wrong.
std::vector<float> hard_values() {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values = {
      0.0F,     -0.0F,     inf,     -inf,     1.00390625F, 1.01171875F, 65504.0F,   65519.0F,
      65520.0F, 1e38F,     3.4e38F, 0x1p-24F, 0x1p-25F,    0x3p-25F,    0x1.8p-24F, 0x1p-14F,
      0x1p-15F, 0x1p-149F, 1e-40F,  -1e-7F,   1.00048828F, 1.0014648F,  -65520.0F,  0x1p-133F};
  for (float& value : normal_values(1000, 5, 1e-6F)) values.push_back(value);
  return values;
}

TEST(Cast, Fp32ToBf16ConvertsEachElement) {
  expect_converts_each_element<BFloat16, float>();
}
TEST(Cast, Fp32ToFp16ConvertsEachElement) {
  expect_converts_each_element<Float16, float>();
}
TEST(Cast, Bf16ToFp32ConvertsEachElement) {
  expect_converts_each_element<float, BFloat16>();
}
TEST(Cast, Bf16ToFp16ConvertsEachElement) {
  expect_converts_each_element<Float16, BFloat16>();
}
TEST(Cast, Fp16ToFp32ConvertsEachElement) {
  expect_converts_each_element<float, Float16>();
}
TEST(Cast, Fp16ToBf16ConvertsEachElement) {
  expect_converts_each_element<BFloat16, Float16>();
}

TEST(Cast, HardValuesRoundAsTheScalarTypesDo) {
  Bench bench;
  const auto values = hard_values();
  EXPECT_EQ(bits_of(cast_values<BFloat16>(bench, values)), bits_of(convert<BFloat16>(values)));
  EXPECT_EQ(bits_of(cast_values<Float16>(bench, values)), bits_of(convert<Float16>(values)));
}

TEST(Cast, EqualTypesAreCopiedWithTheirNans) {
  Bench bench;
  std::vector<float> values = normal_values(1025, 1);
  values[7] = std::bit_cast<float>(0x7f812345U);
  values[8] = std::bit_cast<float>(0xffc00001U);
  EXPECT_EQ(bits_of(cast_values<float>(bench, values)), bits_of(values));
}

TEST(Cast, EveryFp16ValueSurvivesFp32) {
  Bench bench;
  std::vector<Float16> values(65536);
  for (std::size_t i = 0; i < values.size(); ++i) values[i].bits = static_cast<std::uint16_t>(i);
  const auto back = cast_values<Float16>(bench, cast_values<float>(bench, values));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool nan = (i & 0x7fffU) > 0x7c00U;
    const bool back_is_nan = (back[i].bits & 0x7fffU) > 0x7c00U;
    ASSERT_EQ(back_is_nan, nan) << i;
    if (nan) continue;
    ASSERT_EQ(back[i].bits, values[i].bits);
  }
}

TEST(Cast, NanStaysNanInNarrowTypes) {
  Bench bench;
  // All payload bits are below those that bf16 and fp16 keep.
  const std::vector<float> values(9, std::bit_cast<float>(0x7f800001U));
  for (const BFloat16 value : cast_values<BFloat16>(bench, values)) {
    EXPECT_TRUE(std::isnan(static_cast<float>(value)));
  }
  for (const Float16 value : cast_values<Float16>(bench, values)) {
    EXPECT_TRUE(std::isnan(static_cast<float>(value)));
  }
}

TEST(Cast, SameBitsForAnyThreads) {
  expect_same_bits_for_any_threads(
      [](Bench& bench) { return cast_values<BFloat16>(bench, normal_values(70001, 1)); });
}

TEST(Cast, SameBitsOnEveryDevice) {
  expect_same_bits_on_every_device(
      [](Bench& bench) { return cast_values<BFloat16>(bench, normal_values(1025, 1)); });
}

TEST(Cast, RefusesUnequalSizes) {
  Bench bench;
  const Buffer a = bench.allocate(8), b = bench.allocate(9);
  const auto error = thrown<UsageError>([&] { cast(a.view(), b.view(), *bench.stream); });
  EXPECT_TRUE(contains(error, {"cast", "source", "9", "8"}));
}

TEST(Cast, RefusesIntegers) {
  Bench bench;
  const Buffer a = bench.allocate(8), b = bench.allocate(8, DType::kI32);
  const auto error = thrown<UsageError>([&] { cast(a.view(), b.view(), *bench.stream); });
  EXPECT_TRUE(contains(error, {"int32", "fp32 or bf16 or fp16"}));
}

TEST(Cast, RefusesOverlap) {
  Bench bench;
  const Buffer a = bench.allocate(8);
  EXPECT_THROW(cast(a.view().slice(0, 4), a.view().slice(3, 4), *bench.stream), UsageError);
}

TEST(Cast, RefusesAViewOfAnotherKindOfDevice) {
  Bench cpu(DeviceKind::kCpu), simulated(DeviceKind::kCpuSim);
  const Buffer a = cpu.allocate(8), b = simulated.allocate(8);
  const auto error = thrown<UsageError>([&] { cast(a.view(), b.view(), *cpu.stream); });
  EXPECT_TRUE(contains(error, {"source", "cpu:sim"}));
}

template <class Half>
void expect_rounds_in_place() {
  Bench bench(DeviceKind::kCpu, 2);
  auto values = hard_values();
  const Buffer buffer = bench.upload(values);
  round_to(buffer.view(), kDTypeOf<Half>, *bench.stream);
  EXPECT_EQ(bits_of(bench.download<float>(buffer.view())),
            bits_of(convert<float>(convert<Half>(values))));
}

TEST(RoundTo, Bf16LeavesWhatBf16CanHold) {
  expect_rounds_in_place<BFloat16>();
}
TEST(RoundTo, Fp16LeavesWhatFp16CanHold) {
  expect_rounds_in_place<Float16>();
}

TEST(RoundTo, Fp32ChangesNothing) {
  Bench bench;
  const auto values = hard_values();
  const Buffer buffer = bench.upload(values);
  round_to(buffer.view(), DType::kF32, *bench.stream);
  EXPECT_EQ(bits_of(bench.download<float>(buffer.view())), bits_of(values));
}

TEST(RoundTo, RefusesOtherTypes) {
  Bench bench;
  const Buffer buffer = bench.allocate(8);
  EXPECT_THROW(round_to(buffer.view(), DType::kI32, *bench.stream), UsageError);
}

}  // namespace
}  // namespace zero3::test
