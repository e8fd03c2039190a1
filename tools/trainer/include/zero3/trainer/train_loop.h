#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <zero3/trainer/rank_trainer.h>
#include <zero3/trainer/token_data.h>

namespace zero3::trainer {

/// What one optimizer step did.
struct StepRecord {
  /// From 1.
  std::int64_t step = 0;
  /// Mean over the step's tokens on all ranks.
  double loss = 0;
  double grad_norm = 0, learning_rate = 0;
  /// On all ranks, in all steps so far.
  std::int64_t tokens = 0;
  /// Of this step, on all ranks, without evaluation.
  double tokens_per_s = 0, step_ms = 0;
  /// Mean over the validation tokens, where the step was followed by an evaluation.
  std::optional<double> val_loss;
  /// Why the step changed nothing; empty if it was applied.
  std::string skipped;
};

/// What a run did.
struct DoneRecord {
  std::int64_t steps = 0;
  std::optional<double> val_loss;
  std::uint64_t weights_checksum = 0;
  /// Of the rank that had most in use at its peak.
  MemoryByTag peak;
  MemoryPlan planned;
  /// Most that the process of any rank had resident.
  Bytes peak_rss{0};
  /// This rank's collectives until the last step or evaluation.
  CommCounters comm;
  /// Of this rank's layer inputs, with the host memory that they have taken and were to take.
  OffloadCounters offload;
  Bytes host_checkpoints, planned_host_checkpoints;
  /// In which a block's token-wise work on a micro-batch runs.
  std::int64_t tiles = 1;
};

/// Gets records as they come about, on the thread that trains. What it throws ends the run.
class TrainSink {
 public:
  virtual ~TrainSink() = default;
  TrainSink(const TrainSink&) = delete;
  TrainSink& operator=(const TrainSink&) = delete;
  /// What is not as the options ask for, in words; before the first step.
  virtual void on_remark(std::string_view) {}
  virtual void on_step(const StepRecord& record) = 0;
  virtual void on_done(const DoneRecord& record) = 0;

 protected:
  TrainSink() = default;
};

/// So many steps in a row without finite gradients end a run.
inline constexpr int kMaxSkippedSteps = 10;

/// Trains a fresh model on one rank, evaluates every eval_every steps and at the end, and gives the
/// records to `sink` (may be null). Every rank calls it with equal arguments; the records differ in
/// their times alone. `data` has options.micro_batch.seq and options.seed. Throws what the engine
/// throws, and Error after kMaxSkippedSteps.
void train(Device& device, Communicator& communicator, const LlamaConfig& config,
           const TrainOptions& options, const TokenData& data, TrainSink* sink);

}  // namespace zero3::trainer
