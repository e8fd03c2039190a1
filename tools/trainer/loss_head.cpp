#include <zero3/trainer/loss_head.h>

#include <zero3/copy.h>
#include <zero3/cross_entropy.h>
#include <zero3/reduce.h>
#include <zero3/rms_norm.h>

#include "carver.h"

namespace zero3::trainer {
namespace {

RmsNormShape norm_shape(const LossHeadShape& shape, std::int64_t rows) {
  return {.rows = rows,
          .width = shape.width,
          .eps = shape.rms_norm_eps,
          .granule_rows = shape.granule_rows};
}

}  // namespace

struct LossHead::Scratch {
  TensorView gemm, norm, rstd;
  /// The norm's output, and later the gradient for it and for its input.
  TensorView normed, d_normed;
  /// d_logits is the logits' own memory in fp32.
  TensorView logits, d_logits;
};

LossHead::Scratch LossHead::carve(Carver& carver) const {
  const std::int64_t rows = block_rows();
  const Bytes gemm = Gemm::workspace_bytes({.rows = rows, .in = shape_.width, .out = shape_.vocab},
                                           shape_.dtype, shape_.threads, shape_.granule_rows);
  const Bytes norm = rms_norm_workspace_bytes(norm_shape(shape_, rows), shape_.threads);
  Scratch scratch;
  scratch.gemm = carver.take(gemm.count(), DType::kU8);
  scratch.norm = carver.take(norm.count(), DType::kU8);
  scratch.rstd = carver.take(rows, DType::kF32);
  scratch.normed = carver.take(rows * shape_.width, shape_.dtype);
  scratch.d_normed = carver.take(rows * shape_.width, shape_.dtype);
  scratch.logits = carver.take(rows * shape_.vocab, DType::kF32);
  scratch.d_logits =
      shape_.dtype == DType::kF32 ? scratch.logits : carver.take(rows * shape_.vocab, shape_.dtype);
  return scratch;
}

Bytes LossHead::workspace_bytes() const {
  Carver carver;
  static_cast<void>(carve(carver));
  return carver.used();
}

void LossHead::evaluate(const Call& call, const Weights& weights, TensorView hidden) const {
  run(call, weights, nullptr, hidden, 1.0F);
}

void LossHead::train(const Call& call, const Weights& weights, const WeightGradients& gradients,
                     TensorView hidden, float loss_scale) const {
  run(call, weights, &gradients, hidden, loss_scale);
}

void LossHead::run(const Call& call, const Weights& weights, const WeightGradients* gradients,
                   TensorView hidden, float loss_scale) const {
  const std::int64_t width = shape_.width, vocab = shape_.vocab;
  const std::int64_t all_rows = hidden.count() / width;
  ZERO3_CHECK(all_rows <= shape_.rows, "a micro-batch of ", all_rows,
              " tokens is larger than the planned ", shape_.rows);
  Carver carver(call.workspace);
  const Scratch scratch = carve(carver);
  for (std::int64_t begin = 0; begin < all_rows; begin += block_rows()) {
    const std::int64_t rows = std::min(block_rows(), all_rows - begin);
    const LinearShape product = {.rows = rows, .in = width, .out = vocab};
    const RmsNormShape norm = norm_shape(shape_, rows);
    const TensorView x = hidden.slice(begin * width, rows * width);
    const TensorView normed = scratch.normed.slice(0, rows * width);
    const TensorView rstd = scratch.rstd.slice(0, rows);
    const TensorView logits = scratch.logits.slice(0, rows * vocab);
    const TensorView d_logits =
        gradients != nullptr ? scratch.d_logits.slice(0, rows * vocab) : TensorView();
    rms_norm_forward(normed, rstd, x, weights.norm, norm, call.stream);
    call.gemm.forward(logits, normed, weights.table, TensorView(), product, scratch.gemm);
    cross_entropy(call.row_losses.slice(begin, rows), d_logits, logits,
                  call.targets.slice(begin, rows),
                  {.rows = rows, .vocab = vocab, .ignore_index = kIgnoreToken, .scale = loss_scale},
                  call.stream);
    if (gradients == nullptr) continue;
    const TensorView d_normed = scratch.d_normed.slice(0, rows * width);
    call.gemm.backward_weight(gradients->table, d_logits, normed, product, scratch.gemm);
    call.gemm.backward_input(d_normed, d_logits, weights.table, product, Into::kReplace,
                             scratch.gemm);
    rms_norm_backward(d_normed, gradients->norm, d_normed, x, rstd, weights.norm, norm,
                      Into::kReplace, scratch.norm, call.stream);
    copy(x, d_normed, call.stream);
  }
  sum_in_order(call.loss_sum, call.row_losses.slice(0, all_rows), call.stream);
}

}  // namespace zero3::trainer
