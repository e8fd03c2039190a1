#pragma once

#include <cstdint>

#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// AdamW (Loshchilov and Hutter 2019, algorithm 2), as PyTorch computes it: with g = grad ·
/// grad_scale, w -= lr · decay · w; m = b1·m + (1−b1)·g; v = b2·v + (1−b2)·g²; w -= lr/(1−b1^t) · m
/// / (sqrt(v/(1−b2^t)) + eps).
struct AdamWStep {
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  /// Unscaling and clipping in one factor.
  double grad_scale = 1;
  /// Number of this step, from 1.
  std::int64_t t = 1;
};

/// One step over fp32 arrays of equal size, in place for weights, m and v. The factors that depend
/// on the step alone are computed in double and rounded once; then each fp32 operation rounds once,
/// with no fused multiply-add, on every backend: w = w·(1 − lr·decay) − (lr/(1−b1^t))·m /
/// (sqrt(v)·(1/sqrt(1−b2^t)) + eps). Throws UsageError when sizes differ, arrays overlap, t < 1 or
/// a beta is outside [0, 1).
void adamw_step(TensorView weights, TensorView m, TensorView v, TensorView grads,
                const AdamWStep& step, Stream& stream);

}  // namespace zero3
