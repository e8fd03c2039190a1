#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "group.h"
#include "local/world.h"

namespace zero3::local {

using collective::Call;
using collective::text_of;
using collective::text_of_ranks;

/// Ranks that are threads of one process ([Note: levels] in group.h).
///
/// [Note: failing] After a failure no step begins, and a rank leaves a call it has arrived at only
/// when no peer is in the middle of a step: its caller may free the memory at once.
class LocalGroup final : public collective::Group {
 public:
  LocalGroup(std::shared_ptr<World> world, std::vector<int> members, std::string name);

  [[nodiscard]] const std::shared_ptr<World>& world() const { return world_; }

  void arrive(const Call& call) override;
  void work(const Call& call, int step) override;
  void depart(const Call& call) override;
  void skip(const Call& call, const std::exception_ptr& error) noexcept override;
  [[nodiscard]] bool passed(const Call& call, int level) override;
  void await(const Call& call, int level) override;
  [[nodiscard]] std::string describe(const Call& call, int level) override;
  [[nodiscard]] std::unique_ptr<Communicator> child(const Call& call) override;
  void end(int rank, std::int64_t issued, bool by_exception) noexcept override;
  void abort(int rank, std::string_view reason) noexcept override;

 private:
  struct Slot {
    std::int64_t sequence = -1;
    std::vector<const Call*> calls;  ///< null: has not arrived
    std::vector<int> progress;       ///< levels that each rank has contributed to
    std::array<int, kMostSteps + 1> reached{};
    int working = 0;
    std::map<int, std::shared_ptr<LocalGroup>> children;
  };
  struct Ended {
    std::int64_t issued = INT64_MAX;
    bool by_exception = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  // All with the lock held.
  Slot& slot_of(const Call& call) { return slots_[static_cast<std::size_t>(call.sequence % 2)]; }
  bool has_passed(const Call& call, int level);
  void contribute(Slot& slot, int rank, int level);
  void check_agreement(const Slot& slot, const Call& call);
  void fail_for_ended(const Slot& slot, int rank);
  /// Once the call has waited for the timeout (kTimeToSpeak).
  void fail_late(Lock& lock, const Call& call, int level, const std::function<bool()>& settled);
  [[noreturn]] void leave(Lock& lock, const Call& call);
  void wait_for_workers(Lock& lock, const Call& call);
  std::vector<int> absent_from(const Slot& slot, int level) const;
  std::map<int, std::shared_ptr<LocalGroup>> make_children(const Slot& slot) const;

  const std::shared_ptr<World> world_;
  // Guarded by the world's mutex.
  std::array<Slot, 2> slots_;
  std::vector<std::int64_t> departed_;  ///< collectives that each rank is done with
  std::vector<Ended> ended_;
  int waiting_for_turn_ = 0;
};

/// Rank `rank`'s end; a group of one needs no meeting (SelfCommunicator).
[[nodiscard]] std::unique_ptr<Communicator> make_end(std::shared_ptr<LocalGroup> group, int rank);
/// `world_rank` is what errors call it.
[[nodiscard]] std::unique_ptr<Communicator> make_self_end(std::shared_ptr<World> world,
                                                          int world_rank);

}  // namespace zero3::local
