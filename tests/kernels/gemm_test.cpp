#include <zero3/gemm.h>

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <tuple>

#include <support/contains.h>
#include <support/thrown.h>

#include "values.h"

namespace zero3::test {
namespace {

/// Operands of a linear layer. Values are rounded to T first, so a reference in double starts from
/// the same numbers.
template <class T>
struct Linear {
  LinearShape shape;
  std::int64_t granule_rows;
  std::vector<T> x, w, dy;
  std::vector<float> bias;

  Linear(std::int64_t rows, std::int64_t in, std::int64_t out, std::int64_t granule = 16)
      : shape{.rows = rows, .in = in, .out = out},
        granule_rows(granule),
        x(convert<T>(normal_values(rows * in, 1))),
        w(convert<T>(normal_values(out * in, 2))),
        dy(convert<T>(normal_values(rows * out, 3))),
        bias(normal_values(out, 4)) {}
};

template <class T>
double at(const std::vector<T>& values, std::int64_t index) {
  return static_cast<double>(static_cast<float>(values[static_cast<std::size_t>(index)]));
}

/// The value in double, and the sum of the magnitudes of its terms, to which rounding errors are
/// proportional.
struct Reference {
  std::vector<double> value, magnitude;

  void push(double first) {
    value.push_back(first);
    magnitude.push_back(std::abs(first));
  }
  void add(double term) {
    value.back() += term;
    magnitude.back() += std::abs(term);
  }
};

/// result[i, j] = start + Σ_k a(i, k) · b(k, j).
template <class A, class B, class Start>
Reference product(std::int64_t rows, std::int64_t cols, std::int64_t depth, A&& a, B&& b,
                  Start&& start) {
  Reference result;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      result.push(start(i * cols + j));
      for (std::int64_t k = 0; k < depth; ++k) result.add(a(i, k) * b(k, j));
    }
  }
  return result;
}

template <class T>
Reference forward_reference(const Linear<T>& l, bool with_bias) {
  return product(
      l.shape.rows, l.shape.out, l.shape.in,
      [&](std::int64_t i, std::int64_t k) { return at(l.x, i * l.shape.in + k); },
      [&](std::int64_t k, std::int64_t j) { return at(l.w, j * l.shape.in + k); },
      [&](std::int64_t i) { return with_bias ? at(l.bias, i % l.shape.out) : 0.0; });
}

template <class T>
Reference input_reference(const Linear<T>& l, const std::vector<double>& start) {
  return product(
      l.shape.rows, l.shape.in, l.shape.out,
      [&](std::int64_t i, std::int64_t k) { return at(l.dy, i * l.shape.out + k); },
      [&](std::int64_t k, std::int64_t j) { return at(l.w, k * l.shape.in + j); },
      [&](std::int64_t i) { return start[static_cast<std::size_t>(i)]; });
}

template <class T>
Reference weight_reference(const Linear<T>& l, const std::vector<float>& start) {
  return product(
      l.shape.out, l.shape.in, l.shape.rows,
      [&](std::int64_t i, std::int64_t k) { return at(l.dy, k * l.shape.out + i); },
      [&](std::int64_t k, std::int64_t j) { return at(l.x, k * l.shape.in + j); },
      [&](std::int64_t i) { return at(start, i); });
}

/// The largest error as a multiple of what one rounding to `T` and sums of `terms` terms in fp32
/// may cause: half a unit of T in the result, and per term one unit of fp32 in the sum of
/// magnitudes (Higham 2002, section 3.1; random signs stay far below).
template <class T>
double error_over_bound(const std::vector<T>& got, const Reference& want, std::int64_t terms) {
  constexpr double kFloatUnit = std::numeric_limits<float>::epsilon() / 2.0;
  const double unit = std::is_same_v<T, float> ? kFloatUnit : 1.0 / 256.0;
  if (got.size() != want.value.size()) return HUGE_VAL;
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(static_cast<float>(got[i])) - want.value[i]);
    const double bound = unit * std::abs(want.value[i]) +
                         kFloatUnit * static_cast<double>(terms + 2) * want.magnitude[i] + 1e-30;
    if (!std::isfinite(error)) return HUGE_VAL;
    worst = std::max(worst, error / bound);
  }
  return worst;
}

template <class T>
Buffer workspace_for(Bench& bench, const Linear<T>& l, int threads = 3) {
  const Bytes bytes = Gemm::workspace_bytes(l.shape, kDTypeOf<T>, threads, l.granule_rows);
  return bench.allocate(bytes.count(), DType::kU8);
}

/// Rows [row, row + rows) of a token tensor.
TensorView rows_of(const Buffer& buffer, std::int64_t width, std::int64_t row, std::int64_t rows) {
  return buffer.view().slice(row * width, rows * width);
}

/// Calls f(row, shape of the tile) for tiles of `tile_rows` rows (0: one tile).
template <class F>
void for_each_tile(LinearShape shape, std::int64_t tile_rows, F&& f) {
  const std::int64_t step = tile_rows > 0 ? tile_rows : std::max<std::int64_t>(1, shape.rows);
  for (std::int64_t row = 0; row < shape.rows; row += step) {
    LinearShape tile = shape;
    tile.rows = std::min(step, shape.rows - row);
    f(row, tile);
  }
}

template <class Y, class T>
std::vector<Y> forward(Bench& bench, const Linear<T>& l, bool with_bias,
                       std::int64_t tile_rows = 0) {
  Gemm gemm(*bench.stream, l.granule_rows);
  const Buffer x = bench.upload(l.x), w = bench.upload(l.w), bias = bench.upload(l.bias);
  const Buffer y = bench.allocate(l.shape.rows * l.shape.out, kDTypeOf<Y>);
  const Buffer workspace = workspace_for(bench, l);
  for_each_tile(l.shape, tile_rows, [&](std::int64_t row, LinearShape tile) {
    gemm.forward(rows_of(y, tile.out, row, tile.rows), rows_of(x, tile.in, row, tile.rows),
                 w.view(), with_bias ? bias.view() : TensorView(), tile, workspace.view());
  });
  return bench.download<Y>(y.view());
}

template <class Y, class T>
std::vector<Y> backward_input(Bench& bench, const Linear<T>& l,
                              const std::optional<std::vector<Y>>& start,
                              std::int64_t tile_rows = 0) {
  Gemm gemm(*bench.stream, l.granule_rows);
  const Buffer dy = bench.upload(l.dy), w = bench.upload(l.w);
  const Buffer dx =
      start ? bench.upload(*start) : bench.allocate(l.shape.rows * l.shape.in, kDTypeOf<Y>);
  const Buffer workspace = workspace_for(bench, l);
  for_each_tile(l.shape, tile_rows, [&](std::int64_t row, LinearShape tile) {
    gemm.backward_input(rows_of(dx, tile.in, row, tile.rows), rows_of(dy, tile.out, row, tile.rows),
                        w.view(), tile, start ? Into::kAccumulate : Into::kReplace,
                        workspace.view());
  });
  return bench.download<Y>(dx.view());
}

template <class T>
std::vector<float> backward_weight(Bench& bench, const Linear<T>& l,
                                   const std::vector<float>& start, std::int64_t tile_rows = 0) {
  Gemm gemm(*bench.stream, l.granule_rows);
  const Buffer dy = bench.upload(l.dy), x = bench.upload(l.x), dw = bench.upload(start);
  const Buffer workspace = workspace_for(bench, l);
  for_each_tile(l.shape, tile_rows, [&](std::int64_t row, LinearShape tile) {
    gemm.backward_weight(dw.view(), rows_of(dy, tile.out, row, tile.rows),
                         rows_of(x, tile.in, row, tile.rows), tile, workspace.view());
  });
  return bench.download<float>(dw.view());
}

template <class T>
std::vector<float> backward_bias(Bench& bench, const Linear<T>& l, const std::vector<float>& start,
                                 std::int64_t tile_rows = 0) {
  Gemm gemm(*bench.stream, l.granule_rows);
  const Buffer dy = bench.upload(l.dy), dbias = bench.upload(start);
  for_each_tile(l.shape, tile_rows, [&](std::int64_t row, LinearShape tile) {
    gemm.backward_bias(dbias.view(), rows_of(dy, tile.out, row, tile.rows), tile);
  });
  return bench.download<float>(dbias.view());
}

/// All four results, one after another, for comparisons of bits.
template <class T>
std::vector<float> everything(Bench& bench, const Linear<T>& l, std::int64_t tile_rows = 0) {
  std::vector<float> all = convert<float>(forward<T>(bench, l, true, tile_rows));
  const auto append = [&](const std::vector<float>& part) {
    all.insert(all.end(), part.begin(), part.end());
  };
  append(convert<float>(backward_input<T>(bench, l, std::optional<std::vector<T>>(), tile_rows)));
  append(backward_weight(bench, l, normal_values(l.shape.out * l.shape.in, 5), tile_rows));
  append(backward_bias(bench, l, normal_values(l.shape.out, 6), tile_rows));
  return all;
}

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
