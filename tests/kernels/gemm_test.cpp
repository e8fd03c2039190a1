#include <zero3/gemm.h>

#include <gtest/gtest.h>

#include <tuple>

#include <support/contains.h>
#include <support/thrown.h>

#include "linear.h"

namespace zero3::test {
namespace {

/// (rows, in, out): around the panel widths 24 and 48, the tile heights 4 and 8, the blocks of 128,
/// 256, 384 and 512, and the granule of 16 rows.
const std::tuple<std::int64_t, std::int64_t, std::int64_t> kShapes[] = {
    {1, 1, 1},     {1, 7, 5},    {2, 3, 25},   {3, 24, 23},  {15, 8, 24},
    {16, 9, 48},   {17, 47, 49}, {31, 33, 97}, {37, 257, 7}, {5, 256, 31},
    {129, 13, 11}, {9, 3, 385},  {7, 385, 29}, {515, 5, 26}, {33, 70, 513}};

TEST(Gemm, ForwardMatchesDouble) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const auto& [rows, in, out] : kShapes) {
    const Linear<float> l(rows, in, out);
    EXPECT_LT(error_over_bound(forward<float>(bench, l, false), forward_reference(l, false), in),
              1.0)
        << rows << ' ' << in << ' ' << out;
  }
}

TEST(Gemm, ForwardAddsTheBias) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const auto& [rows, in, out] : kShapes) {
    const Linear<float> l(rows, in, out);
    EXPECT_LT(error_over_bound(forward<float>(bench, l, true), forward_reference(l, true), in + 1),
              1.0)
        << rows << ' ' << in << ' ' << out;
  }
}

TEST(Gemm, BackwardInputMatchesDouble) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const auto& [rows, in, out] : kShapes) {
    const Linear<float> l(rows, in, out);
    const Reference want = input_reference(l, std::vector<double>(l.x.size()));
    EXPECT_LT(error_over_bound(backward_input<float>(bench, l, std::optional<std::vector<float>>()),
                               want, out),
              1.0)
        << rows << ' ' << in << ' ' << out;
  }
}

TEST(Gemm, BackwardInputAccumulatesOnRequest) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const auto& [rows, in, out] : kShapes) {
    const Linear<float> l(rows, in, out);
    const std::vector<float> start = normal_values(rows * in, 7);
    const Reference want = input_reference(l, std::vector<double>(start.begin(), start.end()));
    EXPECT_LT(
        error_over_bound(backward_input<float>(bench, l, std::optional(start)), want, out + 1), 1.0)
        << rows << ' ' << in << ' ' << out;
  }
}

TEST(Gemm, BackwardWeightAddsToWhatIsThere) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const auto& [rows, in, out] : kShapes) {
    const Linear<float> l(rows, in, out);
    const std::vector<float> start = normal_values(out * in, 8);
    EXPECT_LT(
        error_over_bound(backward_weight(bench, l, start), weight_reference(l, start), rows + 1),
        1.0)
        << rows << ' ' << in << ' ' << out;
  }
}

TEST(Gemm, BackwardBiasAddsToWhatIsThere) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const auto& [rows, in, out] : kShapes) {
    const Linear<float> l(rows, in, out);
    Reference want;
    for (std::int64_t j = 0; j < out; ++j) {
      want.push(at(l.bias, j));
      for (std::int64_t i = 0; i < rows; ++i) want.add(at(l.dy, i * out + j));
    }
    EXPECT_LT(error_over_bound(backward_bias(bench, l, l.bias), want, rows + 1), 1.0)
        << rows << ' ' << in << ' ' << out;
  }
}

// A granule longer than the depth block (256) has its sum formed apart, before it is added.
TEST(Gemm, BackwardWeightAddsLongGranules) {
  Bench bench(DeviceKind::kCpu, 2);
  const Linear<float> l(1100, 27, 50, 600);
  const std::vector<float> start = normal_values(50 * 27, 9);
  EXPECT_LT(error_over_bound(backward_weight(bench, l, start), weight_reference(l, start), 1101),
            1.0);
}

TEST(Gemm, Bf16ForwardRoundsOnce) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const auto& [rows, in, out] : kShapes) {
    const Linear<BFloat16> l(rows, in, out);
    EXPECT_LT(
        error_over_bound(forward<BFloat16>(bench, l, true), forward_reference(l, true), in + 1),
        1.0)
        << rows << ' ' << in << ' ' << out;
  }
}

TEST(Gemm, Bf16ForwardIntoFp32KeepsTheSum) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const auto& [rows, in, out] : kShapes) {
    const Linear<BFloat16> l(rows, in, out);
    EXPECT_LT(error_over_bound(forward<float>(bench, l, false), forward_reference(l, false), in),
              1.0)
        << rows << ' ' << in << ' ' << out;
  }
}

TEST(Gemm, Bf16BackwardInputRoundsOnce) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const auto& [rows, in, out] : kShapes) {
    const Linear<BFloat16> l(rows, in, out);
    const Reference want = input_reference(l, std::vector<double>(l.x.size()));
    EXPECT_LT(
        error_over_bound(backward_input<BFloat16>(bench, l, std::optional<std::vector<BFloat16>>()),
                         want, out),
        1.0)
        << rows << ' ' << in << ' ' << out;
  }
}

TEST(Gemm, Bf16BackwardInputAccumulatesWithOneRounding) {
  Bench bench(DeviceKind::kCpu, 2);
  const Linear<BFloat16> l(37, 50, 300);
  const auto start = convert<BFloat16>(normal_values(37 * 50, 7));
  const std::vector<float> start_values = convert<float>(start);
  const Reference want =
      input_reference(l, std::vector<double>(start_values.begin(), start_values.end()));
  EXPECT_LT(error_over_bound(backward_input<BFloat16>(bench, l, std::optional(start)), want, 301),
            1.0);
}

TEST(Gemm, Bf16BackwardWeightKeepsFp32Sums) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const auto& [rows, in, out] : kShapes) {
    const Linear<BFloat16> l(rows, in, out);
    const std::vector<float> start = normal_values(out * in, 8);
    EXPECT_LT(
        error_over_bound(backward_weight(bench, l, start), weight_reference(l, start), rows + 1),
        1.0)
        << rows << ' ' << in << ' ' << out;
  }
}

TEST(Gemm, BiasMayBeBf16) {
  Bench bench;
  const Linear<BFloat16> l(5, 9, 30);
  Gemm gemm(*bench.stream, l.granule_rows);
  const Buffer x = bench.upload(l.x), w = bench.upload(l.w),
               bias = bench.upload(convert<BFloat16>(l.bias));
  const Buffer y = bench.allocate(5 * 30), workspace = workspace_for(bench, l);
  gemm.forward(y.view(), x.view(), w.view(), bias.view(), l.shape, workspace.view());
  Linear<BFloat16> rounded = l;
  rounded.bias = convert<float>(convert<BFloat16>(l.bias));
  EXPECT_LT(error_over_bound(bench.download<float>(y.view()), forward_reference(rounded, true), 10),
            1.0);
}

TEST(Gemm, SameBitsForAnyThreads) {
  for (const auto& [rows, in, out] : {std::tuple(256, 96, 96), {40, 300, 1000}, {1000, 33, 24}}) {
    const Linear<float> l(rows, in, out, 64);
    expect_same_bits_for_any_threads([&](Bench& bench) { return everything(bench, l); });
  }
}

TEST(Gemm, SameBitsOnEveryDevice) {
  const Linear<float> l(40, 33, 50);
  expect_same_bits_on_every_device([&](Bench& bench) { return everything(bench, l); });
}

TEST(Gemm, SameBitsForAnyTilesOfWholeGranules) {
  Bench bench(DeviceKind::kCpu, 2);
  const Linear<float> l(16 * 9 + 5, 70, 50);
  const auto want = bits_of(everything(bench, l));
  for (const std::int64_t tile_rows : {16, 32, 48, 144}) {
    EXPECT_EQ(bits_of(everything(bench, l, tile_rows)), want) << tile_rows;
  }
}

TEST(Gemm, SameBitsForAnyTilesInBf16) {
  Bench bench(DeviceKind::kCpu, 2);
  const Linear<BFloat16> l(16 * 9 + 5, 70, 50);
  const auto want = bits_of(everything(bench, l));
  for (const std::int64_t tile_rows : {16, 32, 48, 144}) {
    EXPECT_EQ(bits_of(everything(bench, l, tile_rows)), want) << tile_rows;
  }
}

// Integers stay exact in fp32, so the sums may not differ at all, whatever ran before on the same
// object.
TEST(Gemm, OneObjectServesManyShapes) {
  Bench bench(DeviceKind::kCpu, 2);
  Gemm gemm(*bench.stream);
  for (int round = 0; round < 2; ++round) {
    for (const std::int64_t n : {3, 300, 24, 511}) {
      const LinearShape shape{.rows = n, .in = n, .out = 2};
      std::vector<float> x(static_cast<std::size_t>(n * n)),
          w(static_cast<std::size_t>(2 * n), 1.0F);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7);
      std::vector<float> want;
      for (std::int64_t row = 0; row < n; ++row) {
        float sum = 0;
        for (std::int64_t k = 0; k < n; ++k) sum += x[static_cast<std::size_t>(row * n + k)];
        want.insert(want.end(), 2, sum);
      }
      const Buffer a = bench.upload(x), b = bench.upload(w), y = bench.allocate(2 * n);
      const Buffer workspace =
          bench.allocate(Gemm::workspace_bytes(shape, DType::kF32, 2).count(), DType::kU8);
      gemm.forward(y.view(), a.view(), b.view(), {}, shape, workspace.view());
      EXPECT_EQ(bench.download<float>(y.view()), want) << n;
    }
  }
}

TEST(Gemm, NoRowsEnqueueNothing) {
  Bench bench;
  Gemm gemm(*bench.stream);
  const std::vector<float> start = normal_values(12, 1);
  const Buffer dw = bench.upload(start), w = bench.upload(start);
  const LinearShape shape{.rows = 0, .in = 4, .out = 3};
  gemm.forward({}, {}, w.view(), {}, shape, {});
  gemm.backward_input({}, {}, w.view(), shape, Into::kReplace, {});
  gemm.backward_weight(dw.view(), {}, {}, shape, {});
  gemm.backward_bias(dw.view().slice(0, 3), {}, shape);
  EXPECT_EQ(bench.download<float>(dw.view()), start);
}

TEST(Gemm, WorkspaceDoesNotDependOnTheNumberOfRows) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto bytes = [&](std::int64_t rows) {
      return Gemm::workspace_bytes({.rows = rows, .in = 384, .out = 50304}, dtype, 2);
    };
    EXPECT_EQ(bytes(256), bytes(100000));
    EXPECT_LT(bytes(256), Bytes(32 << 20));
  }
}

TEST(Gemm, TooSmallAWorkspaceIsRefused) {
  Bench bench;
  Gemm gemm(*bench.stream);
  const LinearShape shape{.rows = 2, .in = 3, .out = 4};
  const Buffer x = bench.allocate(6), w = bench.allocate(12), y = bench.allocate(8);
  const Bytes needed = Gemm::workspace_bytes(shape, DType::kF32, 1);
  const Buffer workspace = bench.allocate(needed.count(), DType::kU8);
  const std::string error = thrown<UsageError>([&] {
    gemm.forward(y.view(), x.view(), w.view(), {}, shape,
                 workspace.view().slice(0, needed.count() / 2));
  });
  EXPECT_TRUE(contains(error, {"Gemm::forward", "workspace", "workspace_bytes"}));
}

TEST(Gemm, AWorkspaceForFewerThreadsIsRefused) {
  Bench bench(DeviceKind::kCpu, 3);
  const Linear<float> l(2, 3, 4);
  Gemm gemm(*bench.stream);
  const Buffer x = bench.upload(l.x), w = bench.upload(l.w), y = bench.allocate(8);
  const Buffer workspace = workspace_for(bench, l, 2);
  gemm.forward(y.view(), x.view(), w.view(), {}, l.shape, workspace.view());
  const std::string error = thrown<UsageError>([&] { bench.stream->synchronize(); });
  EXPECT_TRUE(contains(error, {"workspace", "3 threads"}));
}

TEST(Gemm, WrongSizesAndDtypesAreNamed) {
  Bench bench;
  Gemm gemm(*bench.stream);
  const LinearShape shape{.rows = 2, .in = 3, .out = 4};
  const Buffer x = bench.allocate(6), w = bench.allocate(12), y = bench.allocate(8),
               dw = bench.allocate(12);
  const Buffer half = bench.allocate(12, DType::kBF16);
  const Buffer workspace =
      bench.allocate(Gemm::workspace_bytes(shape, DType::kF32, 1).count(), DType::kU8);
  const auto forward_with = [&](TensorView to, TensorView from, TensorView weights, LinearShape s) {
    return thrown<UsageError>([&] { gemm.forward(to, from, weights, {}, s, workspace.view()); });
  };
  EXPECT_TRUE(contains(forward_with(y.view(), x.view(), x.view(), shape), {"w has 6", "12"}));
  EXPECT_TRUE(contains(forward_with(x.view(), x.view(), w.view(), shape), {"y has 6", "8"}));
  EXPECT_TRUE(
      contains(forward_with(y.view(), x.view(), half.view(), shape), {"w is bf16", "fp32"}));
  EXPECT_TRUE(contains(forward_with(half.view().slice(0, 8), x.view(), w.view(), shape),
                       {"y is bf16", "fp32"}));
  EXPECT_TRUE(contains(forward_with(y.view(), x.view(), w.view(), {.rows = 2, .in = 0, .out = 4}),
                       {"in 0"}));
  EXPECT_TRUE(contains(thrown<UsageError>([&] {
                         gemm.backward_weight(half.view(), y.view(), x.view(), shape,
                                              workspace.view());
                       }),
                       {"dw is bf16", "fp32"}));
  EXPECT_TRUE(contains(thrown<UsageError>([&] { Gemm(*bench.stream, 0); }), {"granule_rows", "0"}));
}

TEST(Gemm, ResultsMayNotOverwriteOperands) {
  Bench bench;
  Gemm gemm(*bench.stream);
  const LinearShape shape{.rows = 3, .in = 3, .out = 3};
  const Buffer x = bench.allocate(9), w = bench.allocate(9);
  const Buffer workspace =
      bench.allocate(Gemm::workspace_bytes(shape, DType::kF32, 1).count(), DType::kU8);
  EXPECT_TRUE(contains(thrown<UsageError>([&] {
                         gemm.forward(x.view(), x.view(), w.view(), {}, shape, workspace.view());
                       }),
                       {"y and x share memory"}));
}

TEST(Gemm, TasksOutliveTheObject) {
  Bench bench;
  const Linear<float> l(64, 64, 64);
  const Buffer x = bench.upload(l.x), w = bench.upload(l.w), y = bench.allocate(64 * 64);
  const Buffer workspace = workspace_for(bench, l);
  {
    Gemm gemm(*bench.stream);
    for (int i = 0; i < 50; ++i)
      gemm.forward(y.view(), x.view(), w.view(), {}, l.shape, workspace.view());
  }
  EXPECT_LT(error_over_bound(bench.download<float>(y.view()), forward_reference(l, false), 64),
            1.0);
}

TEST(Gemm, SaysWhatMultiplies) {
  EXPECT_TRUE(contains(Gemm::backend_description(), {"fp32", "bf16"}));
}

}  // namespace
}  // namespace zero3::test
