#pragma once

#include <cstdint>

#include <zero3/gemm.h>

namespace zero3::cpu {

/// Floats of a vector register of the instruction set that the library is compiled for.
#ifdef __AVX512F__
inline constexpr std::int64_t kVectorFloats = 16;
inline constexpr std::int64_t kTileRows = 8;
#else
inline constexpr std::int64_t kVectorFloats = 8;
inline constexpr std::int64_t kTileRows = 4;
#endif
/// Columns that a product handles at a time. With kTileRows rows the sums fill 12 of AVX2's 16 and
/// 24 of AVX-512's 32 registers, which is enough to hide the latency of the multiply-add.
inline constexpr std::int64_t kPanel = 3 * kVectorFloats;

/// kRows: element (i, j) is data[i · stride + j]. kColumns: data[j · stride + i].
enum class Order : std::uint8_t { kRows, kColumns };

/// An fp32 block in cache.
struct Block {
  const float* data = nullptr;
  std::int64_t stride = 0;
  Order order = Order::kRows;
};

/// c[rows, kPanel] (row i at c + i · c_stride) = or += a[rows, depth] · panel[depth, kPanel], with
/// dense rows of `panel`. Each element is one chain of fused multiply-adds in the order of the
/// depth, whatever the number of rows; `into` adds the finished chain.
void multiply_panel(float* c, std::int64_t c_stride, Into into, const Block& a, const float* panel,
                    std::int64_t rows, std::int64_t depth);

}  // namespace zero3::cpu
