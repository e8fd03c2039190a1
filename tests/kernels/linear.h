#pragma once

#include <limits>
#include <optional>

#include <zero3/gemm.h>

#include "values.h"

namespace zero3::test {

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
[[nodiscard]] double at(const std::vector<T>& values, std::int64_t index) {
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
inline TensorView rows_of(const Buffer& buffer, std::int64_t width, std::int64_t row,
                          std::int64_t rows) {
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

}  // namespace zero3::test
