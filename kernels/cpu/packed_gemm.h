#pragma once

#include <zero3/gemm.h>
#include <zero3/units.h>

#include "cpu/pack.h"

namespace zero3::cpu {

/// c[rows, cols] = or += a[rows, depth] · b[depth, cols] + bias[cols].
struct Product {
  std::int64_t rows = 0, cols = 0, depth = 0;
  Operand a, b;
  void* c = nullptr;
  DType c_dtype = DType::kF32;
  /// Null: none.
  const void* bias = nullptr;
  DType bias_dtype = DType::kF32;
  Into into = Into::kReplace;
  /// Rows that a library is given at a time.
  std::int64_t row_granule = 0;
  /// Depth whose sum is formed before it is added to c; only kAccumulate has more than one.
  std::int64_t depth_granule = 0;
};

/// The product by our own kernels, in fp32: bf16 operands are widened while they are packed, each
/// element's sum is fp32 and is rounded once. On as many threads as the running task has; the bits
/// depend neither on their number nor on how the rows are cut into calls. `workspace`:
/// packed_gemm_workspace(threads).
void packed_gemm(const Product& product, float* workspace);

/// The same for every shape: a block of a, a block of b and the sums of a tile, for each thread.
[[nodiscard]] Bytes packed_gemm_workspace(int threads);

}  // namespace zero3::cpu
