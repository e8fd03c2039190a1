#pragma once

#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// out = silu(gate) · up, element by element (Shazeer 2020), fp32 inside; all of one dtype (fp32 or
/// bf16) and size. out may be gate or up. Throws UsageError when sizes do not fit.
void swiglu_forward(TensorView out, TensorView gate, TensorView up, Stream& stream);

/// d_gate and d_up for d_out, all of one dtype and size. A non-empty `product` receives silu(gate)
/// · up again (for the weight gradient of the down projection). Each of the three may be any one of
/// d_out, gate and up, but they are separate from each other. Throws UsageError otherwise.
void swiglu_backward(TensorView d_gate, TensorView d_up, TensorView product, TensorView d_out,
                     TensorView gate, TensorView up, Stream& stream);

}  // namespace zero3
