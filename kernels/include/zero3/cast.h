#pragma once

#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// Converts between fp32, bf16 and fp16, to nearest, ties to even; equal dtypes are copied. Same
/// sizes, no overlap. Throws UsageError otherwise.
void cast(TensorView target, TensorView source, Stream& stream);

/// Rounds fp32 values in place to those that `dtype` (bf16, fp16, fp32) can hold.
void round_to(TensorView values, DType dtype, Stream& stream);

}  // namespace zero3
