#pragma once

#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// out = a + b, fp32 inside; each fp32 or bf16, same sizes; out may be an a or b of its dtype.
/// Throws UsageError when sizes differ.
void add(TensorView out, TensorView a, TensorView b, Stream& stream);

/// out = x · factor; fp32; out may be x.
void scale(TensorView out, TensorView x, float factor, Stream& stream);

}  // namespace zero3
