#include "cpu/pack.h"

#include <algorithm>
#include <cstring>

#include <zero3/half.h>
#include <zero3/units.h>

namespace zero3::cpu {
namespace {

template <class T>
void load(float* to, const T* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

template <class T>
void load_lines(float* to, const T* from, std::int64_t stride, std::int64_t lines,
                std::int64_t length) {
  for (std::int64_t i = 0; i < lines; ++i) load(to + i * length, from + i * stride, length);
}

// Lines of the source are rows of the panels.
template <class T>
void pack_rows(float* to, const T* from, std::int64_t stride, std::int64_t depth,
               std::int64_t cols) {
  for (std::int64_t col = 0; col < cols; col += kPanel) {
    const std::int64_t width = std::min(kPanel, cols - col);
    float* panel = to + col * depth;
    for (std::int64_t k = 0; k < depth; ++k) {
      const T* line = from + k * stride + col;
      if (width == kPanel) {
        load(panel + k * kPanel, line, kPanel);
      } else {
        load(panel + k * kPanel, line, width);
        std::fill(panel + k * kPanel + width, panel + (k + 1) * kPanel, 0.0F);
      }
    }
  }
}

using Eight = float __attribute__((vector_size(32)));

template <class T>
Eight load_eight(const T* from) {
  Eight values;
  for (int i = 0; i < 8; ++i) values[i] = static_cast<float>(from[i]);
  return values;
}

// to[i * to_stride + j] = from[j * from_stride + i] for 8 x 8 elements, in three rounds of
// exchanges.
template <class T>
void transpose_eight(float* to, std::int64_t to_stride, const T* from, std::int64_t from_stride) {
  Eight in[8], pairs[8], fours[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) in[j] = load_eight(from + j * from_stride);
#pragma GCC unroll 8
  for (int j = 0; j < 8; j += 2) {
    pairs[j] = __builtin_shufflevector(in[j], in[j + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[j + 1] = __builtin_shufflevector(in[j], in[j + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; j += 4) {
#pragma GCC unroll 8
    for (int i = 0; i < 2; ++i) {
      fours[j + 2 * i] =
          __builtin_shufflevector(pairs[j + i], pairs[j + i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      fours[j + 2 * i + 1] =
          __builtin_shufflevector(pairs[j + i], pairs[j + i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    const Eight low = __builtin_shufflevector(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    const Eight high = __builtin_shufflevector(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    std::memcpy(to + i * to_stride, &low, sizeof(low));
    std::memcpy(to + (i + 4) * to_stride, &high, sizeof(high));
  }
}

template <class T>
void transpose(float* to, const T* from, std::int64_t from_stride, std::int64_t rows,
               std::int64_t cols) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j)
      to[i * kPanel + j] = static_cast<float>(from[j * from_stride + i]);
  }
}

// Lines of the source are columns of the panels. Pieces of kPiece elements read whole cache lines
// of the source.
template <class T>
void pack_columns(float* to, const T* from, std::int64_t stride, std::int64_t depth,
                  std::int64_t cols) {
  constexpr std::int64_t kPiece = 16;
  static_assert(kPanel % 8 == 0 && kPiece % 8 == 0);
  for (std::int64_t col = 0; col < cols; col += kPanel) {
    const std::int64_t width = std::min(kPanel, cols - col);
    float* panel = to + col * depth;
    const T* lines = from + col * stride;
    const std::int64_t whole = width == kPanel ? depth - depth % kPiece : 0;
    for (std::int64_t k = 0; k < whole; k += kPiece) {
      for (std::int64_t j = 0; j < kPanel; j += 8) {
        for (std::int64_t i = k; i < k + kPiece; i += 8) {
          transpose_eight(panel + i * kPanel + j, kPanel, lines + j * stride + i, stride);
        }
      }
    }
    if (width < kPanel) std::fill(panel, panel + depth * kPanel, 0.0F);
    transpose(panel + whole * kPanel, lines + whole, stride, depth - whole, width);
  }
}

const void* element(const Operand& matrix, std::int64_t row, std::int64_t col) {
  const std::int64_t index =
      matrix.order == Order::kRows ? row * matrix.stride + col : col * matrix.stride + row;
  return static_cast<const std::byte*>(matrix.data) + index * size_of(matrix.dtype);
}

}  // namespace

Block load_block(float* to, const Operand& from, std::int64_t row, std::int64_t col,
                 std::int64_t rows, std::int64_t cols) {
  const std::int64_t lines = from.order == Order::kRows ? rows : cols;
  const std::int64_t length = from.order == Order::kRows ? cols : rows;
  const void* data = element(from, row, col);
  if (from.dtype == DType::kF32) {
    load_lines(to, static_cast<const float*>(data), from.stride, lines, length);
  } else {
    load_lines(to, static_cast<const BFloat16*>(data), from.stride, lines, length);
  }
  return {.data = to, .stride = length, .order = from.order};
}

void pack_panels(float* to, const Operand& from, std::int64_t row, std::int64_t col,
                 std::int64_t depth, std::int64_t cols) {
  const void* data = element(from, row, col);
  const auto pack = [&](const auto* typed) {
    if (from.order == Order::kRows) {
      pack_rows(to, typed, from.stride, depth, cols);
    } else {
      pack_columns(to, typed, from.stride, depth, cols);
    }
  };
  if (from.dtype == DType::kF32) {
    pack(static_cast<const float*>(data));
  } else {
    pack(static_cast<const BFloat16*>(data));
  }
}

}  // namespace zero3::cpu
