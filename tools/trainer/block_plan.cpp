#include "block_plan.h"

#include <algorithm>

namespace zero3::trainer {

BlockParams::BlockParams(const LlamaConfig& config, std::int64_t index) {
  spec.name = concat("block.", index);
  const std::string prefix = concat("model.layers.", index, ".");
  const Init normal = Init::normal(config.initializer_range);
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape, Init init) {
    ParamSpec param = {.name = prefix + name, .shape = shape, .init = init};
    param.optimizer_group = shape.size() == 2 ? kDecayed : kNotDecayed;
    spec.params.push_back(std::move(param));
    return static_cast<int>(spec.params.size()) - 1;
  };
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out, bool bias) {
    Linear result = {.in = in, .out = out, .weight = add(name + ".weight", {out, in}, normal)};
    if (bias) result.bias = add(name + ".bias", {out}, Init::zeros());
    return result;
  };
  const std::int64_t hidden = config.hidden, width = config.query_width(), kv = config.kv_width();
  input_norm = add("input_layernorm.weight", {hidden}, Init::ones());
  q = linear("self_attn.q_proj", hidden, width, config.qkv_bias);
  k = linear("self_attn.k_proj", hidden, kv, config.qkv_bias);
  v = linear("self_attn.v_proj", hidden, kv, config.qkv_bias);
  if (config.qk_norm) {
    q_norm = add("self_attn.q_norm.weight", {config.head_dim}, Init::ones());
    k_norm = add("self_attn.k_norm.weight", {config.head_dim}, Init::ones());
  }
  o = linear("self_attn.o_proj", width, hidden, config.output_bias);
  mlp_norm = add("post_attention_layernorm.weight", {hidden}, Init::ones());
  gate = linear("mlp.gate_proj", hidden, config.intermediate, false);
  up = linear("mlp.up_proj", hidden, config.intermediate, false);
  down = linear("mlp.down_proj", config.intermediate, hidden, false);
}

BlockSaved BlockPlan::carve_saved(Carver& carver, TokenShape tokens) const {
  const std::int64_t rows = tokens.rows();
  const DType dtype = options.dtype;
  BlockSaved saved;
  saved.q = carver.take(rows * config.query_width(), dtype);
  saved.k = carver.take(rows * config.kv_width(), dtype);
  saved.v = carver.take(rows * config.kv_width(), dtype);
  saved.attention = carver.take(rows * config.query_width(), dtype);
  saved.lse = carver.take(rows * config.heads, DType::kF32);
  saved.residual = carver.take(rows * config.hidden, dtype);
  if (options.recompute) return saved;
  saved.gate = carver.take(rows * config.intermediate, dtype);
  saved.up = carver.take(rows * config.intermediate, dtype);
  return saved;
}

BlockScratch BlockPlan::carve_scratch(Carver& carver, TokenShape tokens) const {
  const std::int64_t rows = tokens.rows();
  const std::int64_t q_size = rows * config.query_width(), kv_size = rows * config.kv_width();
  const DType dtype = options.dtype;
  BlockScratch scratch;
  const std::int64_t tile = tile_rows(tokens);
  scratch.gemm = carver.take(gemm_bytes(rows).count(), DType::kU8);
  scratch.norm = carver.take(norm_bytes(rows).count(), DType::kU8);
  if (options.dropout > 0) scratch.dropped = carver.take(tile * config.hidden, dtype);
  scratch.rstd = carver.take(tile, DType::kF32);
  const Bytes shared = carver.position();
  scratch.normed = carver.take(tile * config.hidden, dtype);
  const Bytes behind_normed = carver.position();
  scratch.product = carver.take(tile * config.intermediate, dtype);
  if (options.recompute) {
    scratch.gate = carver.take(tile * config.intermediate, dtype);
    scratch.up = carver.take(tile * config.intermediate, dtype);
  }
  scratch.phases.mlp = carver.position();

  carver.rewind(shared);
  scratch.d_attention = carver.take(q_size, dtype);
  carver.rewind(std::max(carver.position(), behind_normed));
  if (config.qk_norm) {
    scratch.q = carver.take(q_size, dtype);
    scratch.k = carver.take(kv_size, dtype);
    scratch.q_rstd = carver.take(rows * config.heads, DType::kF32);
    scratch.k_rstd = carver.take(rows * config.kv_heads, DType::kF32);
  }
  scratch.d_q = carver.take(q_size, dtype);
  scratch.d_k = carver.take(kv_size, dtype);
  scratch.d_v = carver.take(kv_size, dtype);
  const Bytes kernel = attention_workspace_bytes(attention(tokens), dtype, options.threads);
  scratch.attention = carver.take(kernel.count(), DType::kU8);
  scratch.phases.attention = carver.position();
  return scratch;
}

AttentionShape BlockPlan::attention(TokenShape tokens) const {
  return {.batch = tokens.batch,
          .seq = tokens.seq,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim};
}

RmsNormShape BlockPlan::norm(std::int64_t rows) const {
  return {.rows = rows,
          .width = config.hidden,
          .eps = config.rms_norm_eps,
          .granule_rows = options.granule_rows};
}

RmsNormShape BlockPlan::head_norm(std::int64_t rows, std::int64_t heads) const {
  return {.rows = rows * heads,
          .width = config.head_dim,
          .eps = config.rms_norm_eps,
          .granule_rows = options.granule_rows * heads};
}

RopeShape BlockPlan::rope(TokenShape tokens, std::int64_t heads) const {
  return {.rows = tokens.rows(), .seq = tokens.seq, .heads = heads, .head_dim = config.head_dim};
}

Bytes BlockPlan::gemm_bytes(std::int64_t rows) const {
  const auto of = [&](const Linear& linear) {
    return Gemm::workspace_bytes({.rows = rows, .in = linear.in, .out = linear.out}, options.dtype,
                                 options.threads, options.granule_rows);
  };
  return std::max({of(params.q), of(params.k), of(params.v), of(params.o), of(params.gate),
                   of(params.up), of(params.down)});
}

Bytes BlockPlan::norm_bytes(std::int64_t rows) const {
  const auto of = [&](const RmsNormShape& shape) {
    return rms_norm_workspace_bytes(shape, options.threads);
  };
  if (!config.qk_norm) return of(norm(rows));
  return std::max(
      {of(norm(rows)), of(head_norm(rows, config.heads)), of(head_norm(rows, config.kv_heads))});
}

}  // namespace zero3::trainer
