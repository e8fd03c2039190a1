#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <zero3/activation_store.h>
#include <zero3/engine.h>
#include <zero3/layer.h>
#include <zero3/memory_plan.h>
#include <zero3/trainer/llama_block.h>
#include <zero3/trainer/llama_config.h>
#include <zero3/trainer/loss_head.h>

namespace zero3::trainer {

struct LlamaOptions {
  /// The largest micro-batch.
  TokenShape tokens = {};
  /// Of gathered weights, activations and products: kF32 or kBF16; must be the engine's
  /// Precision::param.
  DType dtype = DType::kF32;
  ActivationCheckpoints checkpoints = {};
  /// Of the blocks, after the largest micro-batch. kAuto is one tile where smaller ones would leave
  /// the workspace as it is.
  TilePolicy tile = {};
  /// LlamaBlockOptions.
  float dropout = 0;
  std::uint64_t seed = 0;
  std::int64_t granule_rows = kDefaultGranuleRows;
};

/// Workspace of what a pass does in turn, in one block that is as large as the largest.
struct LlamaPhases {
  Bytes attention, mlp, head;
};

/// A Llama-family decoder with its loss, trained through an engine: embedding, a LayerStack of
/// blocks, final norm and head.
///
/// Life: construction registers the groups (and their expected order) with the engine, whose
/// options have the two optimizer groups kDecayed and kNotDecayed; Engine::build(), then build().
/// The engine outlives it. Losses are sums over tokens: the engine's divisor makes them means.
class LlamaModel {
 public:
  LlamaModel(Engine& engine, const LlamaConfig& config, const LlamaOptions& options);
  LlamaModel(const LlamaModel&) = delete;
  LlamaModel& operator=(const LlamaModel&) = delete;
  ~LlamaModel();

  /// What build() allocates: all that the model will ever hold besides the engine's own part.
  [[nodiscard]] MemoryPlan plan() const;
  void build();
  /// Bytes; before build() too, as tiles().
  [[nodiscard]] LlamaPhases phases() const;
  /// Of the largest micro-batch, in a block.
  [[nodiscard]] std::int64_t tiles() const;

  /// Forward, loss and backward of one micro-batch: `inputs` and `targets` have tokens.rows() ids
  /// each (copied before return). Reports the loss sum and the number of targets that count to
  /// `micro_step`. Does not wait for the device. Throws UsageError, before anything is enqueued,
  /// for tokens outside of the vocabulary (targets may be kIgnoreToken) and for more tokens than
  /// planned. `place` matters with dropout alone.
  void train(MicroStep& micro_step, std::span<const std::int32_t> inputs,
             std::span<const std::int32_t> targets, TokenShape tokens, BatchPlace place = {});

  struct Loss {
    double sum = 0;
    std::int64_t tokens = 0;
  };
  /// Loss of one micro-batch, forward only. Blocks.
  [[nodiscard]] Loss evaluate(std::span<const std::int32_t> inputs,
                              std::span<const std::int32_t> targets, TokenShape tokens);

  /// Of the blocks' inputs.
  [[nodiscard]] const ActivationStore& layer_inputs() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero3::trainer
