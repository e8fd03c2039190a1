#pragma once

#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// Plain SGD with decoupled decay: w -= lr · (grad · grad_scale + weight_decay · w).
struct SgdStep {
  double learning_rate = 0;
  double weight_decay = 0;
  double grad_scale = 1;
};

/// One step over fp32 arrays of equal size, with no fused multiply-add. Throws UsageError when
/// sizes differ or arrays overlap.
void sgd_step(TensorView weights, TensorView grads, const SgdStep& step, Stream& stream);

}  // namespace zero3
