#pragma once

#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include <zero3/communicator.h>
#include <zero3/options.h>
#include "param_group.h"
#include "prefetch_plan.h"

namespace zero3 {

/// Brings full parameters into being and lets them go, within a bound of bytes.
///
/// [Note: gathered memory] A group's full copy is allocated when its gather is enqueued and
/// returned when its last holder lets go, both in the host's order; the pool makes the gather
/// stream wait for the compute stream where a block changes hands. So at most the groups in use and
/// `prefetch` more exist, and the bound holds whatever the timing.
///
/// [Note: two threads] The thread that made the gatherer alone starts gathers and ends them: what
/// it does decides which collectives a rank issues. Another thread may share a group while the
/// first one holds it.
class Gatherer {
 public:
  struct Config {
    Stream& compute;
    Stream& gather;
    Communicator& communicator;
    std::deque<ParamGroup>& groups;
    int prefetch;
    Elements keep_below;
    Bytes limit;
  };
  explicit Gatherer(const Config& config) : config_(config) {}

  /// The plan that acquire() follows from now on; null: nothing is prefetched. Drops what a former
  /// one had on its way.
  void follow(PrefetchPlan* plan);
  /// Makes the compute stream wait for the group's full copy; one more holder.
  void acquire(GroupId id);
  void release(GroupId id) noexcept;
  [[nodiscard]] TensorView view(GroupId id, int param) const;

  /// Throws UsageError that names a group which is held.
  void check_none_held(std::string_view what) const;
  /// Masters change with what compute has enqueued so far: later gathers wait for it, kept groups
  /// are let go.
  void weights_changed();
  /// Lets go of everything, held or not.
  void drop_all() noexcept;

  /// Largest bytes of full copies in micro-steps that gather in this order, one group at a time,
  /// with `prefetch` groups ahead where `limit` allows.
  [[nodiscard]] static Bytes peak(const std::deque<ParamGroup>& groups,
                                  const std::vector<GroupId>& order, int world_size,
                                  const EngineOptions& options, int prefetch, Bytes limit);

 private:
  // All with the lock held.
  void bring(GroupId id, ParamGroup& group);
  void issue(ParamGroup& group);
  void let_go(ParamGroup& group) noexcept;
  void release_held(ParamGroup& group) noexcept;
  void drop_unheld() noexcept;
  void make_room(const ParamGroup& group);
  void prefetch();
  void check_use() const;
  [[nodiscard]] bool owned() const { return std::this_thread::get_id() == owner_; }
  [[nodiscard]] ParamGroup& group_of(GroupId id) const {
    return config_.groups[static_cast<std::size_t>(id.index)];
  }
  [[nodiscard]] Bytes bytes_of_group(const ParamGroup& group) const;
  [[nodiscard]] bool kept(const ParamGroup& group) const {
    return group.size() < config_.keep_below;
  }

  Config config_;
  mutable std::mutex mutex_;
  PrefetchPlan* plan_ = nullptr;
  const std::thread::id owner_ = std::this_thread::get_id();
  Bytes live_;
  /// What the next gather has to wait for.
  std::optional<Event> masters_ready_;
  std::exception_ptr misuse_;  ///< found where nothing may be thrown
};

}  // namespace zero3
