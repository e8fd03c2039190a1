#pragma once

#include <cstdint>

#include <zero3/dtype.h>

#include "cpu/micro_kernel.h"

namespace zero3::cpu {

/// Where a matrix of fp32 or bf16 lies in memory, by the orders of Block.
struct Operand {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t stride = 0;
  Order order = Order::kRows;
};

/// Rows [row, row + rows) and columns [col, col + cols) of `from` as dense fp32 in its own order:
/// `to` gets stride `cols` (kRows) or `rows` (kColumns). Copying pays even for fp32: strides that
/// are multiples of 4 KiB map every row to the same few cache sets.
Block load_block(float* to, const Operand& from, std::int64_t row, std::int64_t col,
                 std::int64_t rows, std::int64_t cols);

/// Rows [row, row + depth) and columns [col, col + cols) of `from` as panels [depth, kPanel] of
/// fp32, one after the other; columns after the last are 0.
void pack_panels(float* to, const Operand& from, std::int64_t row, std::int64_t col,
                 std::int64_t depth, std::int64_t cols);

}  // namespace zero3::cpu
