#pragma once

#include <zero3/attention.h>
#include <zero3/rms_norm.h>
#include <zero3/rope.h>
#include <zero3/trainer/llama_block.h>

#include "carver.h"

namespace zero3::trainer {

/// A linear layer's sizes, and where its parameters are in the group; -1: it has none.
struct Linear {
  std::int64_t in = 0, out = 0;
  int weight = -1, bias = -1;
};

/// The group of a block's parameters, under Hugging Face's names, and where each is in it.
struct BlockParams {
  BlockParams(const LlamaConfig& config, std::int64_t index);

  GroupSpec spec;
  int input_norm = -1, q_norm = -1, k_norm = -1, mlp_norm = -1;
  Linear q, k, v, o, gate, up, down;
};

/// What a forward leaves for its backward.
struct BlockSaved {
  /// Rotated; in a model with q/k norm as they were projected.
  TensorView q, k;
  TensorView v, attention, lse, residual;
  /// Not kept with recomputation.
  TensorView gate, up;
};

/// Memory during one call.
struct BlockScratch {
  TensorView gemm, norm;
  /// With dropout, of one tile: the gradient through it.
  TensorView dropped;
  // Of one tile. A norm's output, and later the gradient for it:
  TensorView rstd, normed;
  // The MLP: silu(gate) · up, or its gradient; gate and up with recomputation.
  TensorView product, gate, up;
  /// Over the tile's.
  TensorView d_attention;
  // Of the attention, over the MLP's. Normed and rotated heads, in a model with q/k norm:
  TensorView q, k, q_rstd, k_rstd;
  TensorView d_q, d_k, d_v, attention;
  /// What the two take, with what they share.
  BlockPhases phases;
};

/// Sizes of what a block computes, and the memory for it.
struct BlockPlan {
  LlamaConfig config;
  LlamaBlockOptions options;
  BlockParams params;
  /// The block's number in the model.
  std::int64_t index = 0;

  [[nodiscard]] std::int64_t tile_rows(TokenShape tokens) const {
    return zero3::tile_rows(options.tile, tokens, config.hidden, options.granule_rows);
  }
  [[nodiscard]] BlockSaved carve_saved(Carver& carver, TokenShape tokens) const;
  [[nodiscard]] BlockScratch carve_scratch(Carver& carver, TokenShape tokens) const;

  [[nodiscard]] AttentionShape attention(TokenShape tokens) const;
  [[nodiscard]] RmsNormShape norm(std::int64_t rows) const;
  /// Each head is a row; granules are those of the tokens.
  [[nodiscard]] RmsNormShape head_norm(std::int64_t rows, std::int64_t heads) const;
  [[nodiscard]] RopeShape rope(TokenShape tokens, std::int64_t heads) const;

 private:
  [[nodiscard]] Bytes gemm_bytes(std::int64_t rows) const;
  [[nodiscard]] Bytes norm_bytes(std::int64_t rows) const;
};

}  // namespace zero3::trainer
