#include <zero3/trainer/llama_block.h>

#include <zero3/elementwise.h>
#include <zero3/swiglu.h>

#include "block_plan.h"

namespace zero3::trainer {
namespace {

/// One forward or backward of a block.
class BlockPass {
 public:
  BlockPass(const BlockPlan& plan, const RopeViews& rope, const LayerContext& context,
            const Gathered& weights, const TensorView& saved);

  /// Leaves x + attention(norm(x)) in saved.residual.
  void attend(TensorView in);
  /// Leaves the gate and up projections in saved.
  void expand();
  void contract(TensorView out);
  void backward(const Gradients& grads, TensorView in, TensorView gradient);

 private:
  void mlp_backward(const Gradients& grads, TensorView gradient);
  void attention_part_backward(const Gradients& grads, TensorView in, TensorView gradient);
  void rotate_heads();
  void unrotate_gradients(const Gradients& grads);

  void project(TensorView y, TensorView x, const Linear& linear);
  void add_weight_gradients(const Gradients& grads, TensorView dy, TensorView x,
                            const Linear& linear);
  void input_gradient(TensorView dx, TensorView dy, const Linear& linear, Into into);
  void norm(TensorView x, int weight);
  void norm_backward(const Gradients& grads, TensorView dx, TensorView x, int weight);

  [[nodiscard]] LinearShape shape(const Linear& linear) const {
    return {.rows = rows_, .in = linear.in, .out = linear.out};
  }
  /// Heads as the attention sees them.
  [[nodiscard]] const TensorView& q() const { return plan_.config.qk_norm ? scratch_.q : saved_.q; }
  [[nodiscard]] const TensorView& k() const { return plan_.config.qk_norm ? scratch_.k : saved_.k; }
  void rotate(TensorView heads, std::int64_t count, RopeDirection direction);

  const BlockPlan& plan_;
  const BlockParams& params_;
  const LayerContext& context_;
  const Gathered& weights_;
  Stream& stream_;
  std::int64_t rows_;
  TensorView cos_, sin_;
  BlockSaved saved_;
  BlockScratch scratch_;
};

BlockPass::BlockPass(const BlockPlan& plan, const RopeViews& rope, const LayerContext& context,
                     const Gathered& weights, const TensorView& saved)
    : plan_(plan),
      params_(plan.params),
      context_(context),
      weights_(weights),
      stream_(context.stream),
      rows_(context.tokens.rows()) {
  const std::int64_t angles = context.tokens.seq * plan.config.head_dim / 2;
  ZERO3_CHECK(angles <= rope.cos.count(), "a sequence of ", context.tokens.seq,
              " tokens is longer than the rotary table's ",
              rope.cos.count() * 2 / plan.config.head_dim);
  cos_ = rope.cos.slice(0, angles);
  sin_ = rope.sin.slice(0, angles);
  Carver saved_carver(saved), scratch_carver(context.workspace);
  saved_ = plan.carve_saved(saved_carver, context.tokens);
  scratch_ = plan.carve_scratch(scratch_carver, context.tokens);
}

void BlockPass::project(TensorView y, TensorView x, const Linear& linear) {
  const TensorView bias = linear.bias < 0 ? TensorView() : weights_[linear.bias];
  context_.gemm.forward(y, x, weights_[linear.weight], bias, shape(linear), scratch_.gemm);
}

void BlockPass::add_weight_gradients(const Gradients& grads, TensorView dy, TensorView x,
                                     const Linear& linear) {
  context_.gemm.backward_weight(grads[linear.weight], dy, x, shape(linear), scratch_.gemm);
  if (linear.bias >= 0) context_.gemm.backward_bias(grads[linear.bias], dy, shape(linear));
}

void BlockPass::input_gradient(TensorView dx, TensorView dy, const Linear& linear, Into into) {
  context_.gemm.backward_input(dx, dy, weights_[linear.weight], shape(linear), into, scratch_.gemm);
}

void BlockPass::norm(TensorView x, int weight) {
  rms_norm_forward(scratch_.normed, scratch_.rstd, x, weights_[weight], plan_.norm(rows_), stream_);
}

void BlockPass::norm_backward(const Gradients& grads, TensorView dx, TensorView x, int weight) {
  rms_norm_backward(dx, grads[weight], scratch_.normed, x, scratch_.rstd, weights_[weight],
                    plan_.norm(rows_), Into::kAccumulate, scratch_.norm, stream_);
}

void BlockPass::rotate(TensorView heads, std::int64_t count, RopeDirection direction) {
  rope(heads, cos_, sin_, plan_.rope(context_.tokens, count), direction, stream_);
}

void BlockPass::rotate_heads() {
  const LlamaConfig& config = plan_.config;
  if (config.qk_norm) {
    rms_norm_forward(scratch_.q, scratch_.q_rstd, saved_.q, weights_[params_.q_norm],
                     plan_.head_norm(rows_, config.heads), stream_);
    rms_norm_forward(scratch_.k, scratch_.k_rstd, saved_.k, weights_[params_.k_norm],
                     plan_.head_norm(rows_, config.kv_heads), stream_);
  }
  rotate(q(), config.heads, RopeDirection::kForward);
  rotate(k(), config.kv_heads, RopeDirection::kForward);
}

void BlockPass::unrotate_gradients(const Gradients& grads) {
  const LlamaConfig& config = plan_.config;
  rotate(scratch_.d_q, config.heads, RopeDirection::kBackward);
  rotate(scratch_.d_k, config.kv_heads, RopeDirection::kBackward);
  if (!config.qk_norm) return;
  rms_norm_backward(scratch_.d_q, grads[params_.q_norm], scratch_.d_q, saved_.q, scratch_.q_rstd,
                    weights_[params_.q_norm], plan_.head_norm(rows_, config.heads), Into::kReplace,
                    scratch_.norm, stream_);
  rms_norm_backward(scratch_.d_k, grads[params_.k_norm], scratch_.d_k, saved_.k, scratch_.k_rstd,
                    weights_[params_.k_norm], plan_.head_norm(rows_, config.kv_heads),
                    Into::kReplace, scratch_.norm, stream_);
}

void BlockPass::attend(TensorView in) {
  norm(in, params_.input_norm);
  project(saved_.q, scratch_.normed, params_.q);
  project(saved_.k, scratch_.normed, params_.k);
  project(saved_.v, scratch_.normed, params_.v);
  rotate_heads();
  attention_forward(saved_.attention, saved_.lse, q(), k(), saved_.v,
                    plan_.attention(context_.tokens), scratch_.attention, stream_);
  project(saved_.residual, saved_.attention, params_.o);
  add(saved_.residual, saved_.residual, in, stream_);
}

void BlockPass::expand() {
  norm(saved_.residual, params_.mlp_norm);
  project(saved_.gate, scratch_.normed, params_.gate);
  project(saved_.up, scratch_.normed, params_.up);
}

void BlockPass::contract(TensorView out) {
  swiglu_forward(scratch_.product, saved_.gate, saved_.up, stream_);
  project(out, scratch_.product, params_.down);
  add(out, out, saved_.residual, stream_);
}

void BlockPass::mlp_backward(const Gradients& grads, TensorView gradient) {
  const TensorView &product = scratch_.product, &d_gate = saved_.gate, &d_up = saved_.up;
  input_gradient(product, gradient, params_.down, Into::kReplace);
  // The gradients take the place of what they are computed from.
  swiglu_backward(d_gate, d_up, product, product, saved_.gate, saved_.up, stream_);
  add_weight_gradients(grads, gradient, product, params_.down);
  norm(saved_.residual, params_.mlp_norm);
  add_weight_gradients(grads, d_gate, scratch_.normed, params_.gate);
  add_weight_gradients(grads, d_up, scratch_.normed, params_.up);
  input_gradient(scratch_.normed, d_gate, params_.gate, Into::kReplace);
  input_gradient(scratch_.normed, d_up, params_.up, Into::kAccumulate);
  norm_backward(grads, gradient, saved_.residual, params_.mlp_norm);
}

void BlockPass::attention_part_backward(const Gradients& grads, TensorView in,
                                        TensorView gradient) {
  add_weight_gradients(grads, gradient, saved_.attention, params_.o);
  input_gradient(scratch_.d_attention, gradient, params_.o, Into::kReplace);
  if (plan_.config.qk_norm) rotate_heads();
  attention_backward(scratch_.d_q, scratch_.d_k, scratch_.d_v, scratch_.d_attention,
                     saved_.attention, saved_.lse, q(), k(), saved_.v,
                     plan_.attention(context_.tokens), scratch_.attention, stream_);
  unrotate_gradients(grads);
  norm(in, params_.input_norm);
  add_weight_gradients(grads, scratch_.d_q, scratch_.normed, params_.q);
  add_weight_gradients(grads, scratch_.d_k, scratch_.normed, params_.k);
  add_weight_gradients(grads, scratch_.d_v, scratch_.normed, params_.v);
  input_gradient(scratch_.normed, scratch_.d_q, params_.q, Into::kReplace);
  input_gradient(scratch_.normed, scratch_.d_k, params_.k, Into::kAccumulate);
  input_gradient(scratch_.normed, scratch_.d_v, params_.v, Into::kAccumulate);
  norm_backward(grads, gradient, in, params_.input_norm);
}

void BlockPass::backward(const Gradients& grads, TensorView in, TensorView gradient) {
  mlp_backward(grads, gradient);
  attention_part_backward(grads, in, gradient);
}

}  // namespace

struct LlamaBlock::State {
  BlockPlan plan;
  const RopeViews& rope;
};

LlamaBlock::LlamaBlock(const LlamaConfig& config, std::int64_t index,
                       const LlamaBlockOptions& options, const RopeViews& rope)
    : state_(std::make_unique<const State>(
          State{BlockPlan{config, options, BlockParams(config, index)}, rope})) {
  ZERO3_CHECK(options.dtype == DType::kF32 || options.dtype == DType::kBF16, "a block computes in ",
              DType::kF32, " or ", DType::kBF16, ", not in ", options.dtype);
}

LlamaBlock::~LlamaBlock() = default;

GroupSpec LlamaBlock::group() const {
  return state_->plan.params.spec;
}

LayerMemory LlamaBlock::memory(TokenShape tokens) const {
  Carver saved, scratch;
  static_cast<void>(state_->plan.carve_saved(saved, tokens));
  static_cast<void>(state_->plan.carve_scratch(scratch, tokens));
  return {.saved = saved.used(), .workspace = scratch.used()};
}

void LlamaBlock::forward(const LayerContext& context, const Gathered& weights, TensorView in,
                         TensorView out, TensorView saved, Pass pass) {
  BlockPass run(state_->plan, state_->rope, context, weights, saved);
  run.attend(in);
  run.expand();
  if (pass != Pass::kRecompute) run.contract(out);
}

void LlamaBlock::backward(const LayerContext& context, const Gathered& weights,
                          const Gradients& grads, TensorView in, TensorView saved,
                          TensorView gradient) {
  BlockPass run(state_->plan, state_->rope, context, weights, saved);
  run.backward(grads, in, gradient);
}

}  // namespace zero3::trainer
