#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include <zero3/communicator.h>
#include <zero3/options.h>
#include "param_group.h"

namespace zero3 {

/// Full gradients of a micro-step, and their way into the shards.
///
/// [Note: gradient slots] A group's slot is zeroed when its gradients are first asked for, added
/// to, and reduced after the group's last use. It is returned, in the host's order, only when
/// another slot is wanted and `grad_slots` of them are taken, so that the reduction runs behind the
/// next layer's backward. Slots held for a further use do not count.
///
/// [Note: one order of reductions] Groups are reduced in the order in which their gradients are
/// expected to be complete, on every rank, whatever its data made it use: a group that a rank
/// leaves out is reduced as it stands, or as zeros, before a later one is used for the last time.
///
/// [Note: the left fold] Micro-step 0 replaces the accumulator by rank 0's gradient, later ones add
/// to it: the shard is g_0 + g_1 + … in the order j = micro_step · N + rank, so N · micro_steps
/// alone decides the bits. At world size 1 micro-step 0 is computed in the accumulator itself: the
/// same values without the copy.
class GradReducer {
 public:
  struct Config {
    Stream& compute;
    Stream& reduce;
    Communicator& communicator;
    std::deque<ParamGroup>& groups;
    const EngineOptions& options;
  };
  /// `order`: of the uses of gradients in a micro-step.
  GradReducer(const Config& config, const std::vector<GroupId>& order);

  void begin_micro_step(int index);
  /// Makes the group's gradients ready to be added to on the compute stream.
  void open(ParamGroup& group);
  [[nodiscard]] TensorView view(const ParamGroup& group, int param) const;
  /// One use is over; after the last the group is reduced, when all before it are.
  void close(ParamGroup& group);
  /// Reduces every group that was not reduced in this micro-step. Throws UsageError for gradients
  /// that are still held.
  void end_micro_step();
  /// Returns all slots; makes the compute stream wait for all reductions.
  void finish();
  /// Forgets everything of this step.
  void drop_all() noexcept;

  /// Largest bytes of slots that a step takes whose micro-steps ask for gradients in this order.
  [[nodiscard]] static Bytes slot_peak(const std::deque<ParamGroup>& groups,
                                       const std::vector<GroupId>& order, int world_size,
                                       const EngineOptions& options);

 private:
  [[nodiscard]] bool keeps_full() const {
    return config_.options.accumulation == Accumulation::kKeepFull;
  }
  [[nodiscard]] bool last_micro_step() const {
    return micro_step_ + 1 == config_.options.micro_steps;
  }
  /// Gradients are computed in the accumulator: no slot.
  [[nodiscard]] bool in_place() const {
    return config_.communicator.world_size() == 1 && (micro_step_ == 0 || keeps_full());
  }
  /// Indices of the groups that have gradients, by their last use in `uses`, the others behind.
  [[nodiscard]] static std::vector<std::size_t> order_of_reductions(
      const std::deque<ParamGroup>& groups, const std::vector<GroupId>& uses);
  void prepare(ParamGroup& group);
  /// Reduces what is due and not being written.
  void advance();
  void make_due(const ParamGroup& group, std::size_t places);
  [[nodiscard]] std::size_t place_of(const ParamGroup& group) const;
  void retire(std::size_t keep) noexcept;
  void retire(ParamGroup& group) noexcept;
  void reduce(ParamGroup& group);

  Config config_;
  const std::vector<std::size_t> order_;
  std::size_t next_ = 0;                ///< place in the order of the group to be reduced next
  std::size_t due_ = 0;                 ///< groups at places before this get no more gradients
  const ParamGroup* latest_ = nullptr;  ///< what made them due
  int micro_step_ = -1;
  /// Groups whose slots are being reduced, in the order in which that began.
  std::deque<ParamGroup*> in_flight_;
};

}  // namespace zero3
