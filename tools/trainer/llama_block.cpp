#include <zero3/trainer/llama_block.h>

#include <algorithm>

#include <zero3/dropout.h>
#include <zero3/elementwise.h>
#include <zero3/swiglu.h>

#include "block_plan.h"

namespace zero3::trainer {
namespace {

/// Distinguishes draws of dropout from those of weights and of data.
constexpr std::uint32_t kDropoutPurpose = 0x64726f70;
/// What a block drops.
enum : std::uint32_t { kAttentionSite, kMlpSite, kSites };

LinearShape shape(std::int64_t rows, const Linear& linear) {
  return {.rows = rows, .in = linear.in, .out = linear.out};
}

/// One forward or backward of a block.
class BlockPass {
 public:
  BlockPass(const BlockPlan& plan, const RopeViews& rope, const LayerContext& context,
            const Gathered& weights, const TensorView& saved);

  /// Leaves x + attention(norm(x)) in saved.residual.
  void attend(TensorView in);
  void mlp(TensorView out);
  /// What the backward of the MLP reads, if it does not compute it itself.
  void mlp_for_backward();
  void backward(const Gradients& grads, TensorView in, TensorView gradient);

 private:
  /// Rows that token-wise work takes at a time.
  struct Tile {
    std::int64_t begin, rows;
  };
  template <class F>
  void for_each_tile(const F& work) const {
    for (std::int64_t begin = 0; begin < rows_; begin += tile_rows_) {
      work(Tile{begin, std::min(tile_rows_, rows_ - begin)});
    }
  }
  /// The tile's rows of a tensor of all rows.
  [[nodiscard]] static TensorView of(const TensorView& tensor, const Tile& tile,
                                     std::int64_t width) {
    return tensor.slice(tile.begin * width, tile.rows * width);
  }
  [[nodiscard]] TensorView hidden_of(const TensorView& tensor, const Tile& tile) const {
    return of(tensor, tile, plan_.config.hidden);
  }
  /// A tensor of one tile.
  [[nodiscard]] static TensorView first(const TensorView& tensor, const Tile& tile,
                                        std::int64_t width) {
    return tensor.slice(0, tile.rows * width);
  }
  struct Mlp {
    TensorView normed, product, gate = {}, up = {};
  };
  [[nodiscard]] Mlp mlp_of(const Tile& tile) const;
  /// norm, gate and up.
  void expand(const Mlp& mlp, const Tile& tile);
  void mlp_backward(const Gradients& grads, TensorView gradient);
  void attention_part_backward(const Gradients& grads, TensorView in, TensorView gradient);
  /// In place, where the block drops and trains; `first_row` is the first of `x`.
  void drop(TensorView x, std::int64_t first_row, std::uint32_t site);
  void dropout_rows(TensorView target, TensorView source, std::int64_t first_row,
                    std::uint32_t site);
  /// The gradient of what was dropped, for that of what came out: the same without dropout.
  TensorView through_dropout(TensorView gradient, const Tile& tile, std::uint32_t site);
  [[nodiscard]] bool drops() const { return plan_.options.dropout > 0 && context_.training; }
  void rotate_heads();
  void unrotate_gradients(const Gradients& grads);

  void project(TensorView y, TensorView x, const Linear& linear);
  void add_weight_gradients(const Gradients& grads, TensorView dy, TensorView x,
                            const Linear& linear);
  void input_gradient(TensorView dx, TensorView dy, const Linear& linear, Into into);
  /// Returns the norm of one tile's rows.
  TensorView norm(TensorView x, const Tile& tile, int weight);
  /// dx += the gradient through the norm, whose own is in the tile's `normed`.
  void norm_backward(const Gradients& grads, TensorView dx, TensorView x, const Tile& tile,
                     int weight);

  /// Heads as the attention sees them.
  [[nodiscard]] const TensorView& q() const { return plan_.config.qk_norm ? scratch_.q : saved_.q; }
  [[nodiscard]] const TensorView& k() const { return plan_.config.qk_norm ? scratch_.k : saved_.k; }
  void rotate(TensorView heads, std::int64_t count, RopeDirection direction);

  const BlockPlan& plan_;
  const BlockParams& params_;
  const LayerContext& context_;
  const Gathered& weights_;
  Stream& stream_;
  std::int64_t rows_, tile_rows_;
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
      rows_(context.tokens.rows()),
      tile_rows_(plan.tile_rows(context.tokens)) {
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
  context_.gemm.forward(y, x, weights_[linear.weight], bias, shape(x.count() / linear.in, linear),
                        scratch_.gemm);
}

void BlockPass::add_weight_gradients(const Gradients& grads, TensorView dy, TensorView x,
                                     const Linear& linear) {
  const LinearShape product = shape(x.count() / linear.in, linear);
  context_.gemm.backward_weight(grads[linear.weight], dy, x, product, scratch_.gemm);
  if (linear.bias >= 0) context_.gemm.backward_bias(grads[linear.bias], dy, product);
}

void BlockPass::input_gradient(TensorView dx, TensorView dy, const Linear& linear, Into into) {
  context_.gemm.backward_input(dx, dy, weights_[linear.weight],
                               shape(dx.count() / linear.in, linear), into, scratch_.gemm);
}

TensorView BlockPass::norm(TensorView x, const Tile& tile, int weight) {
  const TensorView normed = first(scratch_.normed, tile, plan_.config.hidden);
  rms_norm_forward(normed, first(scratch_.rstd, tile, 1), x, weights_[weight],
                   plan_.norm(tile.rows), stream_);
  return normed;
}

void BlockPass::norm_backward(const Gradients& grads, TensorView dx, TensorView x, const Tile& tile,
                              int weight) {
  rms_norm_backward(dx, grads[weight], first(scratch_.normed, tile, plan_.config.hidden), x,
                    first(scratch_.rstd, tile, 1), weights_[weight], plan_.norm(tile.rows),
                    Into::kAccumulate, scratch_.norm, stream_);
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
  const LlamaConfig& config = plan_.config;
  for_each_tile([&](const Tile& tile) {
    const TensorView normed = norm(hidden_of(in, tile), tile, params_.input_norm);
    project(of(saved_.q, tile, config.query_width()), normed, params_.q);
    project(of(saved_.k, tile, config.kv_width()), normed, params_.k);
    project(of(saved_.v, tile, config.kv_width()), normed, params_.v);
  });
  rotate_heads();
  attention_forward(saved_.attention, saved_.lse, q(), k(), saved_.v,
                    plan_.attention(context_.tokens), scratch_.attention, stream_);
  project(saved_.residual, saved_.attention, params_.o);
  drop(saved_.residual, 0, kAttentionSite);
  add(saved_.residual, saved_.residual, in, stream_);
}

BlockPass::Mlp BlockPass::mlp_of(const Tile& tile) const {
  const std::int64_t hidden = plan_.config.hidden, width = plan_.config.intermediate;
  Mlp mlp = {.normed = first(scratch_.normed, tile, hidden),
             .product = first(scratch_.product, tile, width)};
  if (plan_.options.recompute) {
    mlp.gate = first(scratch_.gate, tile, width);
    mlp.up = first(scratch_.up, tile, width);
  } else {
    mlp.gate = of(saved_.gate, tile, width);
    mlp.up = of(saved_.up, tile, width);
  }
  return mlp;
}

void BlockPass::expand(const Mlp& mlp, const Tile& tile) {
  norm(hidden_of(saved_.residual, tile), tile, params_.mlp_norm);
  project(mlp.gate, mlp.normed, params_.gate);
  project(mlp.up, mlp.normed, params_.up);
}

void BlockPass::drop(TensorView x, std::int64_t first_row, std::uint32_t site) {
  if (drops()) dropout_rows(x, x, first_row, site);
}

TensorView BlockPass::through_dropout(TensorView gradient, const Tile& tile, std::uint32_t site) {
  if (!drops()) return gradient;
  const TensorView dropped = first(scratch_.dropped, tile, plan_.config.hidden);
  dropout_rows(dropped, gradient, tile.begin, site);
  return dropped;
}

void BlockPass::dropout_rows(TensorView target, TensorView source, std::int64_t first_row,
                             std::uint32_t site) {
  const BatchPlace& place = context_.place;
  dropout(target, source, plan_.config.hidden, plan_.options.dropout,
          {.key = philox_key(plan_.options.seed, kDropoutPurpose),
           .step = place.step,
           .site = static_cast<std::uint32_t>(plan_.index) * kSites + site,
           .first_token = place.first_token + first_row},
          stream_);
}

void BlockPass::mlp(TensorView out) {
  for_each_tile([&](const Tile& tile) {
    const Mlp mlp = mlp_of(tile);
    const TensorView tile_out = hidden_of(out, tile);
    expand(mlp, tile);
    swiglu_forward(mlp.product, mlp.gate, mlp.up, stream_);
    project(tile_out, mlp.product, params_.down);
    drop(tile_out, tile.begin, kMlpSite);
    add(tile_out, tile_out, hidden_of(saved_.residual, tile), stream_);
  });
}

void BlockPass::mlp_for_backward() {
  if (plan_.options.recompute) return;
  for_each_tile([&](const Tile& tile) { expand(mlp_of(tile), tile); });
}

void BlockPass::mlp_backward(const Gradients& grads, TensorView gradient) {
  for_each_tile([&](const Tile& tile) {
    const Mlp mlp = mlp_of(tile);
    const TensorView d_out = hidden_of(gradient, tile);
    const TensorView residual = hidden_of(saved_.residual, tile);
    if (plan_.options.recompute) {
      expand(mlp, tile);
    } else {
      norm(residual, tile, params_.mlp_norm);
    }
    const TensorView d_branch = through_dropout(d_out, tile, kMlpSite);
    input_gradient(mlp.product, d_branch, params_.down, Into::kReplace);
    // The gradients take the place of what they are computed from.
    const TensorView &d_gate = mlp.gate, &d_up = mlp.up;
    swiglu_backward(d_gate, d_up, mlp.product, mlp.product, mlp.gate, mlp.up, stream_);
    add_weight_gradients(grads, d_branch, mlp.product, params_.down);
    add_weight_gradients(grads, d_gate, mlp.normed, params_.gate);
    add_weight_gradients(grads, d_up, mlp.normed, params_.up);
    input_gradient(mlp.normed, d_gate, params_.gate, Into::kReplace);
    input_gradient(mlp.normed, d_up, params_.up, Into::kAccumulate);
    norm_backward(grads, d_out, residual, tile, params_.mlp_norm);
  });
}

void BlockPass::attention_part_backward(const Gradients& grads, TensorView in,
                                        TensorView gradient) {
  const LlamaConfig& config = plan_.config;
  for_each_tile([&](const Tile& tile) {
    const TensorView d_branch = through_dropout(hidden_of(gradient, tile), tile, kAttentionSite);
    add_weight_gradients(grads, d_branch, of(saved_.attention, tile, config.query_width()),
                         params_.o);
    input_gradient(of(scratch_.d_attention, tile, config.query_width()), d_branch, params_.o,
                   Into::kReplace);
  });
  if (config.qk_norm) rotate_heads();
  attention_backward(scratch_.d_q, scratch_.d_k, scratch_.d_v, scratch_.d_attention,
                     saved_.attention, saved_.lse, q(), k(), saved_.v,
                     plan_.attention(context_.tokens), scratch_.attention, stream_);
  unrotate_gradients(grads);
  for_each_tile([&](const Tile& tile) {
    const TensorView x = hidden_of(in, tile);
    const TensorView normed = norm(x, tile, params_.input_norm);
    const TensorView d_q = of(scratch_.d_q, tile, config.query_width());
    const TensorView d_k = of(scratch_.d_k, tile, config.kv_width());
    const TensorView d_v = of(scratch_.d_v, tile, config.kv_width());
    add_weight_gradients(grads, d_q, normed, params_.q);
    add_weight_gradients(grads, d_k, normed, params_.k);
    add_weight_gradients(grads, d_v, normed, params_.v);
    input_gradient(normed, d_q, params_.q, Into::kReplace);
    input_gradient(normed, d_k, params_.k, Into::kAccumulate);
    input_gradient(normed, d_v, params_.v, Into::kAccumulate);
    norm_backward(grads, hidden_of(gradient, tile), x, tile, params_.input_norm);
  });
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
          State{BlockPlan{config, options, BlockParams(config, index), index}, rope})) {
  ZERO3_CHECK(options.dtype == DType::kF32 || options.dtype == DType::kBF16, "a block computes in ",
              DType::kF32, " or ", DType::kBF16, ", not in ", options.dtype);
  ZERO3_CHECK(options.dropout >= 0 && options.dropout < 1, "dropout is ", options.dropout,
              "; give a probability from 0 to below 1");
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

BlockPhases LlamaBlock::phases(TokenShape tokens) const {
  Carver scratch;
  return state_->plan.carve_scratch(scratch, tokens).phases;
}

void LlamaBlock::forward(const LayerContext& context, const Gathered& weights, TensorView in,
                         TensorView out, TensorView saved, Pass pass) {
  BlockPass run(state_->plan, state_->rope, context, weights, saved);
  run.attend(in);
  if (pass != Pass::kRecompute) {
    run.mlp(out);
  } else {
    run.mlp_for_backward();
  }
}

void LlamaBlock::backward(const LayerContext& context, const Gathered& weights,
                          const Gradients& grads, TensorView in, TensorView saved,
                          TensorView gradient) {
  BlockPass run(state_->plan, state_->rope, context, weights, saved);
  run.backward(grads, in, gradient);
}

}  // namespace zero3::trainer
