#pragma once

#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

struct CrossEntropyShape {
  std::int64_t rows = 0, vocab = 0;
  /// Rows with this target count for nothing: loss 0, gradient 0.
  std::int32_t ignore_index = -100;
  /// Factor of the gradient (a loss scale), not of the loss.
  float scale = 1.0F;
};

/// Softmax cross-entropy of logits [rows, vocab] fp32 against `targets` int32, in one pass of
/// exponentials (on the CPU a bf16 gradient takes a row of fp32 host scratch per thread):
/// row_loss[r] (fp64) = log Σ exp(logits[r]) − logits[r, target]; d_logits (fp32 or bf16; may be
/// the logits' own memory when fp32) = scale · (softmax − onehot). An empty `d_logits` leaves the
/// gradient out. A target that is neither valid nor ignore_index makes the stream fail with
/// UsageError that names the first such row. Throws UsageError when sizes do not fit.
void cross_entropy(TensorView row_loss, TensorView d_logits, TensorView logits, TensorView targets,
                   const CrossEntropyShape& shape, Stream& stream);

}  // namespace zero3
