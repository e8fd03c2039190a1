#pragma once

#include <memory>

#include <zero3/layer.h>
#include <zero3/tile_policy.h>
#include <zero3/trainer/llama_config.h>

namespace zero3::trainer {

/// Groups of EngineOptions::optimizer_groups that the models' parameters name: matrices, and what
/// is not decayed (norms, biases, embeddings).
inline constexpr int kDecayed = 0;
inline constexpr int kNotDecayed = 1;

/// Tables of make_rope_table() on the device, fp32 [seq, head_dim/2] for the longest sequence: one
/// for all blocks.
struct RopeViews {
  TensorView cos, sin;
};

struct LlamaBlockOptions {
  /// Of gathered weights, token tensors and products: kF32 or kBF16.
  DType dtype = DType::kF32;
  std::int64_t granule_rows = kDefaultGranuleRows;
  /// Of the stream that will run the block.
  int threads = 1;
  /// Of the MLP, the norms and the projections.
  TilePolicy tile = {};
  /// Each backward comes right after a recomputing pass: the MLP's products then run again tile by
  /// tile, and nothing of it is kept.
  bool recompute = false;
  /// Probability with which an element of the attention's and of the MLP's output is dropped before
  /// it is added to the residual stream, in training.
  float dropout = 0;
  /// Of the run, for dropout.
  std::uint64_t seed = 0;
};

/// Workspace of a block's two halves, of which one runs at a time.
struct BlockPhases {
  Bytes attention, mlp;
};

/// One decoder layer: h = x + attention(norm(x)), y = h + mlp(norm(h)).
///
/// For its backward it keeps q, k, v, the attention's output and its log-sum-exps, h, and, without
/// recomputation, gate and up; norms, silu and the rotation of normed heads run again. With
/// recomputation gate and up run again in the backward, tile by tile, and the down projection does
/// not: 11 products of the MLP's size for forward and backward together, where running the whole
/// layer twice takes 12. Results do not depend on the tiles.
class LlamaBlock final : public Layer {
 public:
  /// `rope` is read when the block runs and outlives it.
  LlamaBlock(const LlamaConfig& config, std::int64_t index, const LlamaBlockOptions& options,
             const RopeViews& rope);
  LlamaBlock(const LlamaBlock&) = delete;
  LlamaBlock& operator=(const LlamaBlock&) = delete;
  ~LlamaBlock() override;

  [[nodiscard]] GroupSpec group() const override;
  [[nodiscard]] LayerMemory memory(TokenShape tokens) const override;
  /// LayerMemory::workspace is the larger.
  [[nodiscard]] BlockPhases phases(TokenShape tokens) const;
  void forward(const LayerContext& context, const Gathered& weights, TensorView in, TensorView out,
               TensorView saved, Pass pass) override;
  void backward(const LayerContext& context, const Gathered& weights, const Gradients& grads,
                TensorView in, TensorView saved, TensorView gradient) override;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace zero3::trainer
