#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <zero3/engine.h>
#include <zero3/lr_schedule.h>
#include <zero3/trainer/llama_config.h>
#include <zero3/trainer/llama_model.h>

namespace zero3::trainer {

/// How a model is trained.
struct TrainOptions {
  std::int64_t steps = 100;
  /// What a rank works on at a time.
  TokenShape micro_batch = {.batch = 8, .seq = 256};
  /// Micro-batches of a rank in one optimizer step.
  int accumulate = 1;
  LrSchedule schedule = {};
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  float beta1 = 0.9F, beta2 = 0.95F, eps = 1e-8F;
  /// Of matrices; norms, biases and embeddings do not decay.
  float weight_decay = 0.1F;
  /// Largest gradient norm; 0: no clipping.
  float clip = 1.0F;
  /// Of gathered weights, activations and matrix products: kF32 or kBF16.
  DType dtype = DType::kF32;
  std::uint64_t seed = 0;
  /// Where layer inputs wait, and whether layers run again in the backward.
  ActivationCheckpoints checkpoints = {};
  /// Of token-wise work in the blocks.
  TilePolicy tile = {};
  /// Probability of dropping an element of a block's branches.
  float dropout = 0;
  /// Layers gathered ahead.
  int prefetch = 1;
  Elements keep_gathered_below{0};
  /// Steps between evaluations; 0: at the end alone.
  std::int64_t eval_every = 100;
  /// Validation tokens of an evaluation, rounded up to whole sequences.
  std::int64_t eval_tokens = 16384;
};

[[nodiscard]] EngineOptions engine_options(const TrainOptions& options);
[[nodiscard]] LlamaOptions llama_options(const TrainOptions& options);

/// Writes micro-batch j: inputs and targets of micro_batch.rows() tokens each.
using FillMicroBatch = std::function<void(std::int64_t j, std::span<std::int32_t> inputs,
                                          std::span<std::int32_t> targets)>;

/// Calls `work`. What it throws is told to the other ranks before it goes on: the streams of this
/// rank, which its owner is about to end, may wait for operations that the others would never join.
void run_or_abort(Communicator& communicator, const std::function<void()>& work);

/// One rank's part of a training: an engine and a model on it. Every rank makes the same calls in
/// the same order; the results are the same on all. Device and communicator outlive it.
class RankTrainer {
 public:
  RankTrainer(Device& device, Communicator& communicator, const LlamaConfig& config,
              const TrainOptions& options);

  /// Of the whole rank. Available before build().
  [[nodiscard]] MemoryPlan plan() const { return engine_.plan() + model_.plan(); }
  /// Allocates everything that the steps will hold.
  void build();

  /// One optimizer step over the micro-batches j = micro_step · N + rank for micro_step 0 …
  /// accumulate − 1.
  StepResult step(double learning_rate, const FillMicroBatch& fill);
  /// Mean loss over the targets of micro-batches 0 … micro_batches − 1, which are dealt out as
  /// those of a step and summed in the order of j: the same bits for every N. Blocks. A rank
  /// without a micro-batch takes part with one that counts nothing.
  [[nodiscard]] double evaluate(std::int64_t micro_batches, const FillMicroBatch& fill);

  /// As LlamaModel's; available before build() too.
  [[nodiscard]] LlamaPhases phases() const { return model_.phases(); }
  [[nodiscard]] std::int64_t tiles() const { return model_.tiles(); }
  [[nodiscard]] const ActivationStore& layer_inputs() const { return model_.layer_inputs(); }
  [[nodiscard]] Engine& engine() { return engine_; }
  [[nodiscard]] const Engine& engine() const { return engine_; }

 private:
  TrainOptions options_;
  Engine engine_;
  LlamaModel model_;
  /// Skipped ones count: masks follow the data, not the updates.
  std::int64_t step_ = 0;
  std::vector<std::int32_t> inputs_, targets_;
};

}  // namespace zero3::trainer
