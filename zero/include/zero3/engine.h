#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <zero3/communicator.h>
#include <zero3/device.h>
#include <zero3/gathered.h>
#include <zero3/memory_plan.h>
#include <zero3/options.h>
#include <zero3/param_spec.h>

namespace zero3 {

struct StepOptions {
  double learning_rate = 0;
  /// What gradients (sums over tokens) are divided by; nothing: the tokens reported by all ranks'
  /// micro-steps, or 1 if none were reported.
  std::optional<double> divisor = std::nullopt;
};

struct StepResult {
  /// False: nothing was changed, see `reason`.
  bool applied = false;
  std::string reason = {};
  /// Global norm of the divided and unscaled gradient, before clipping; the same bits on every
  /// rank.
  double grad_norm = 0;
  /// The first parameter with a gradient that is not finite.
  std::string first_bad_parameter = {};
  /// Over all ranks and micro-steps, folded in the order of micro-batches.
  double loss_sum = 0;
  std::int64_t tokens = 0;
};

/// A ZeRO stage-3 engine: this rank's 1/N of parameters, gradients and optimizer states, and the
/// movement around them.
///
/// Life: add_group… → build → (begin_micro_step → gather / grads per layer → end)… → step → ….
/// Every rank makes the same calls in the same order. One host thread calls; another may share a
/// group that is gathered already. Device and communicator outlive the engine. Errors of the device
/// and of other ranks come out of step(), synchronize() and reset().
class Engine {
 public:
  Engine(Device& device, Communicator& communicator, EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Registers a group; before build(). Throws UsageError for a name that is taken, a negative
  /// extent, an optimizer group that does not exist.
  GroupId add_group(GroupSpec spec);
  /// Order in which a micro-step gathers groups, and in which it asks for gradients; before
  /// build(), the same on every rank. Default: gathers in the order of registration and back again,
  /// gradients in reverse.
  ///
  /// Gathers may deviate, which costs prefetches. Gradients may be left out, on some ranks or on
  /// all (that rank adds zeros), but not come in another order: groups are reduced in this one, a
  /// group at its last use.
  void expect_order(std::vector<GroupId> gathers, std::vector<GroupId> gradients);
  /// What build() and the steps will hold, if gathers follow the expected order, one group at a
  /// time. Available before build(). Throws UsageError when EngineOptions::gathered_limit is too
  /// small, with the smallest that works.
  [[nodiscard]] MemoryPlan plan() const;
  /// Compares the registrations of all ranks, allocates, and draws the first weights. Throws
  /// UsageError naming the first difference between ranks, OutOfMemoryError.
  void build();

  /// The stream on which layers compute, with the device's threads.
  [[nodiscard]] Stream& compute();
  /// The one given at construction.
  [[nodiscard]] Device& device();
  /// Full parameters of a group: gathered now, unless prefetched or held already; later operations
  /// on compute() may read them. Starts gathering the groups expected next. Throws UsageError when
  /// the gathered bytes would exceed the bound (with the smallest bound that works), when called
  /// from a second thread for a group that is not held.
  [[nodiscard]] Gathered gather(GroupId group);
  /// Gradients of a group for one use. Throws UsageError outside of a micro-step and for more uses
  /// than declared.
  [[nodiscard]] Gradients grads(GroupId group);
  /// Throws UsageError when one is open, and for more micro-steps than EngineOptions::micro_steps.
  [[nodiscard]] MicroStep begin_micro_step();
  /// Between micro-steps. Gathers outside of any pass are allowed too, without prefetching.
  [[nodiscard]] InferencePass begin_inference();

  /// Norm, agreement on finiteness, clip and update of this rank's shard; then a new step begins.
  /// Blocks until all ranks' norms are known; the update itself goes on behind. Groups that no rank
  /// used in this step are left alone (weights, moments and decay). Throws CommError, DeviceError,
  /// and UsageError: after a micro-step that ended by an exception, with fewer micro-steps than
  /// EngineOptions::micro_steps, while a group is held.
  StepResult step(const StepOptions& options);
  /// Drops this step's gradients and gathered parameters and the errors of its operations, so that
  /// the next step equals one in a run where this one never began. Collective.
  void reset();
  /// Waits for all streams; rethrows their errors.
  void synchronize();

  [[nodiscard]] int rank() const;
  [[nodiscard]] int world_size() const;
  [[nodiscard]] const EngineOptions& options() const;
  /// Steps applied so far.
  [[nodiscard]] std::int64_t steps_applied() const;
  [[nodiscard]] std::span<const GroupSpec> groups() const;
  [[nodiscard]] Elements parameter_count() const;
  /// This rank's collectives, those of duplicates included.
  [[nodiscard]] CommCounters comm_counters() const;
  /// Σ over fp32 masters of mix64(global element index, bits) mod 2^64; parameters in the order of
  /// registration, no padding: independent of N. Collective; blocks.
  [[nodiscard]] std::uint64_t weights_checksum();
  /// Full fp32 master of a parameter on every rank's host. Collective; blocks; for tests and small
  /// tools.
  [[nodiscard]] std::vector<float> read_parameter(std::string_view name);
  /// Replaces a master; `values` is the full parameter, each rank takes its part. Blocks. After
  /// build(), between steps, while no group is held.
  void write_parameter(std::string_view name, std::span<const float> values);
  /// Every rank's values, in rank order (world_size · values.size()); each rank gives equally many.
  /// Collective; blocks. For what a trainer reports, such as validation losses.
  [[nodiscard]] std::vector<double> gather_values(std::span<const double> values,
                                                  std::string_view label);

 private:
  friend class Gathered;
  friend class Gradients;
  friend class MicroStep;
  friend class InferencePass;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero3
