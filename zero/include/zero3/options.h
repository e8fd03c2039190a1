#pragma once

#include <cstdint>
#include <vector>

#include <zero3/dtype.h>
#include <zero3/gemm.h>
#include <zero3/units.h>

namespace zero3 {

struct Precision {
  /// Of gathered parameters: kF32, kBF16 or kF16. Masters are always fp32.
  DType param = DType::kF32;
  /// What a gradient is rounded to before it is reduced: kF32, kBF16 or kF16. Sums are always fp32.
  DType reduce = DType::kF32;
};

enum class OptimizerKind : std::uint8_t { kAdamW, kSgd };

/// Hyperparameters of the parameters that name this group.
struct OptimizerGroup {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.0;
  /// Factor of the step's learning rate.
  double learning_rate_factor = 1.0;
};

/// When the gradients of several micro-steps meet.
enum class Accumulation : std::uint8_t {
  /// Each micro-step reduces every group; shards accumulate (design: one rule gives the bits for
  /// every N · micro_steps).
  kReduceEachMicroStep,
  /// Full gradients stay until the last micro-step and are reduced once: fewer collectives, N times
  /// the gradient memory.
  kKeepFull,
};

struct EngineOptions {
  Precision precision = {};
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  std::vector<OptimizerGroup> optimizer_groups = {OptimizerGroup{}};
  /// Largest global gradient norm; 0: no clipping.
  double clip = 0;
  /// Factor that the trainer applies to its loss before the backward; step() divides it out. A
  /// power of two.
  float loss_scale = 1;
  /// Micro-steps of one optimizer step; more are refused.
  int micro_steps = 1;
  Accumulation accumulation = Accumulation::kReduceEachMicroStep;
  /// Groups gathered ahead of the one in use; those that stay gathered do not count.
  int prefetch = 1;
  /// Gradient slots that may be written or on their way at once, besides those held for a further
  /// use.
  int grad_slots = 2;
  /// Groups with fewer elements stay gathered from their first use in a step until its weights
  /// change.
  Elements keep_gathered_below{0};
  /// Most bytes of gathered parameters at once: a hard bound, under which fewer groups are gathered
  /// ahead. 0: what the expected order needs with this prefetch.
  Bytes gathered_limit{0};
  std::uint64_t seed = 0;
};

}  // namespace zero3
