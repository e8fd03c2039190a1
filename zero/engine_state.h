#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include <zero3/engine.h>
#include "gatherer.h"
#include "grad_clip.h"
#include "grad_reducer.h"
#include "param_group.h"
#include "prefetch_plan.h"
#include "sharded_optimizer.h"

namespace zero3 {

/// What an engine is made of, and where a step stands. Engine's functions are in engine.cpp (life
/// and steps), engine_build.cpp (registration, plan, first weights) and parameter_access.cpp (whole
/// parameters and checksums).
struct Engine::State {
  State(Device& device, Communicator& communicator, EngineOptions options);

  Device& device;
  Communicator& communicator;
  EngineOptions options;
  std::unique_ptr<Stream> compute, gather, reduce;
  std::unique_ptr<Communicator> reduce_communicator;

  std::deque<ParamGroup> groups;
  std::vector<GroupSpec> specs;
  std::vector<GroupId> gather_order, gradient_order;
  bool built = false;

  std::unique_ptr<Gatherer> gatherer;
  std::unique_ptr<GradReducer> reducer;
  std::unique_ptr<GlobalNorm> norm;
  std::unique_ptr<ShardedOptimizer> optimizer;
  PrefetchPlan training_plan, inference_plan;

  int micro_steps_begun = 0;
  bool in_micro_step = false, in_inference = false, loss_reported = false;
  std::int64_t tokens = 0;
  std::int64_t steps_applied = 0;
  /// Resets so far.
  std::int64_t epoch = 0;
  /// A micro-step ended by an exception; only reset() helps.
  std::atomic<bool> poisoned = false;
  /// What a destructor could not throw.
  std::exception_ptr pending;

  [[nodiscard]] ParamGroup& group(GroupId id);
  [[nodiscard]] std::vector<GroupId> gathers_in_order() const;
  [[nodiscard]] std::vector<GroupId> gradients_in_order() const;
  /// Most bytes of gathered parameters in the expected order with this many groups ahead.
  [[nodiscard]] Bytes gathered_peak(int prefetch, Bytes limit) const;
  [[nodiscard]] Bytes gathered_limit() const;
  void check_usable(std::string_view what) const;
  /// Keeps the exception that is being handled for step(), which alone may throw it.
  void fail_later() noexcept;
  /// Waits for all streams and forgets their errors.
  void drain() noexcept;
  void allocate();
  void draw_first_weights();
  void end_micro_step();
  void begin_next_step();
};

}  // namespace zero3
