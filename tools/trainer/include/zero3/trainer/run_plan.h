#pragma once

#include <cstdint>

#include <zero3/device.h>
#include <zero3/memory_plan.h>
#include <zero3/trainer/rank_trainer.h>

namespace zero3::trainer {

/// Where a run takes place.
struct RunPlace {
  int ranks = 1;
  DeviceKind device = DeviceKind::kCpu;
  /// Of a rank's compute stream.
  int threads = 1;
};

/// What a run will need, known without allocating device memory or talking to other ranks.
struct RunPlan {
  /// Of each rank.
  MemoryPlan memory;
  /// Of its workspace, by what needs it.
  LlamaPhases phases;
  /// In which a block's token-wise work on a micro-batch runs.
  std::int64_t tiles = 1;
  /// Where its layer inputs wait outside of the device.
  Bytes host_checkpoints, disk_checkpoints;
  std::int64_t parameters = 0;
  /// What a rank receives from others in one optimizer step: parameters and gradients.
  Bytes gathered_per_step, reduced_per_step;
  /// Floating-point operations of a step on all ranks, without and with those of recomputation.
  double model_flops = 0, executed_flops = 0;
};

/// Throws UsageError where the model and the options do not fit together.
[[nodiscard]] RunPlan plan_run(const LlamaConfig& config, const TrainOptions& options,
                               const RunPlace& place);

/// The longest sequence whose plan fits.
struct LongestSequence {
  /// 0: not even one token fits; the other fields are then those of one token.
  std::int64_t seq = 0;
  MemoryPlan memory;
  Bytes host_checkpoints, disk_checkpoints;
  /// The limit of host memory is met first.
  bool bound_by_host = false;
  /// What to make smaller: the tag that grows most with one more granule of tokens, or the largest
  /// where nothing fits.
  MemoryTag binding = MemoryTag::kActivations;
};
/// By bisection over the plan, with everything else as in `options`, whose limit of host memory
/// counts too.
[[nodiscard]] LongestSequence longest_sequence(const LlamaConfig& config,
                                               const TrainOptions& options, const RunPlace& place,
                                               Bytes device_memory);

}  // namespace zero3::trainer
