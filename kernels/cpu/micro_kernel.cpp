#include "cpu/micro_kernel.h"

// This file alone is compiled with contraction, so that a * b + c is one fused instruction.

namespace zero3::cpu {
namespace {

typedef float Vector __attribute__((vector_size(kVectorFloats * sizeof(float))));
// In memory: at any float's address.
typedef float VectorAtFloats
    __attribute__((vector_size(kVectorFloats * sizeof(float)), aligned(alignof(float)), may_alias));
constexpr int kVectors = static_cast<int>(kPanel / kVectorFloats);

// Unrolled by pragma: early enough for the compiler to keep `sums` in registers.
template <int kRows, Order kOrder>
void multiply_tile(float* __restrict c, std::int64_t c_stride, Into into, const float* __restrict a,
                   std::int64_t a_stride, const float* __restrict panel, std::int64_t depth) {
  // The target is read at the end; asked for now, it arrives behind the multiplications.
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    __builtin_prefetch(c + i * c_stride, 1);
    __builtin_prefetch(c + i * c_stride + kPanel - 1, 1);
  }
  Vector sums[kRows][kVectors] = {};
  for (std::int64_t k = 0; k < depth; ++k) {
    Vector row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      row[v] = *reinterpret_cast<const VectorAtFloats*>(panel + k * kPanel + v * kVectorFloats);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const float factor = kOrder == Order::kRows ? a[i * a_stride + k] : a[k * a_stride + i];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[i][v] += factor * row[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      VectorAtFloats& target =
          *reinterpret_cast<VectorAtFloats*>(c + i * c_stride + v * kVectorFloats);
      target = into == Into::kAccumulate ? target + sums[i][v] : sums[i][v];
    }
  }
}

template <int kRows, Order kOrder>
void multiply_last_rows(float* c, std::int64_t c_stride, Into into, const float* a,
                        std::int64_t a_stride, const float* panel, std::int64_t rows,
                        std::int64_t depth) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      multiply_tile<kRows, kOrder>(c, c_stride, into, a, a_stride, panel, depth);
    } else {
      multiply_last_rows<kRows - 1, kOrder>(c, c_stride, into, a, a_stride, panel, rows, depth);
    }
  }
}

template <Order kOrder>
void multiply_rows(float* c, std::int64_t c_stride, Into into, const Block& a, const float* panel,
                   std::int64_t rows, std::int64_t depth) {
  constexpr std::int64_t kHeight = kTileRows;
  std::int64_t i = 0;
  const auto a_row = [&](std::int64_t row) {
    return a.data + (kOrder == Order::kRows ? row * a.stride : row);
  };
  for (; i + kHeight <= rows; i += kHeight) {
    multiply_tile<kHeight, kOrder>(c + i * c_stride, c_stride, into, a_row(i), a.stride, panel,
                                   depth);
  }
  multiply_last_rows<kHeight - 1, kOrder>(c + i * c_stride, c_stride, into, a_row(i), a.stride,
                                          panel, rows - i, depth);
}

}  // namespace

void multiply_panel(float* c, std::int64_t c_stride, Into into, const Block& a, const float* panel,
                    std::int64_t rows, std::int64_t depth) {
  if (a.order == Order::kRows) {
    multiply_rows<Order::kRows>(c, c_stride, into, a, panel, rows, depth);
  } else {
    multiply_rows<Order::kColumns>(c, c_stride, into, a, panel, rows, depth);
  }
}

}  // namespace zero3::cpu
