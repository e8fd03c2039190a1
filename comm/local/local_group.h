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

#include <zero3/communicator.h>
#include <zero3/internal/cpu_stream.h>
#include "local/world.h"

namespace zero3::local {

class LocalGroup;
struct Call;

/// What the ranks must agree on before payload moves.
struct Header {
  std::string_view operation;
  std::string label = {};
  Bytes bytes = {};
  DType dtype = DType::kU8;
  /// Of what is read (all_gather), or of what travels (reduce_scatter).
  DType source_dtype = DType::kU8;
  Into into = Into::kReplace;
  int root = 0;

  friend bool operator==(const Header&, const Header&) = default;
};

/// The calls of all ranks, by rank.
using Peers = std::span<const Call* const>;

/// What one rank does once all ranks have got as far: reads the peers' memory, writes its own.
struct Step {
  std::string name;
  std::vector<internal::Output> outputs;
  std::function<void(Peers)> run;
};

/// One rank's part in one collective; lives as long as its tasks.
struct Call {
  std::shared_ptr<LocalGroup> group;
  int rank;
  std::int64_t sequence;
  Header header;
  /// What peers read, where tasks may touch it.
  const void* source = nullptr;
  int color = 0, key = 0;
  std::vector<Step> steps = {};
};

/// The ranks that share one order of collectives.
///
/// [Note: levels] A call passes levels: 0 when all ranks have arrived, k when all have done step
/// k - 1. Step k waits for level k, and the departure for the last, so that a rank's memory is read
/// only while its stream stands in the call. A rank arrives at a collective after it has departed
/// from the one before, so no more than two collectives are under way and two slots serve all.
///
/// [Note: failing] After a failure no step begins, and a rank leaves a call it has arrived at only
/// when no peer is in the middle of a step: its caller may free the memory at once.
class LocalGroup {
 public:
  static constexpr int kMostSteps = 2;
  /// Not a level: passed when the rank has departed from the collective before.
  static constexpr int kTurn = -1;

  /// `members`: ranks of the world, by rank of this group. `name` is empty for the whole world.
  LocalGroup(std::shared_ptr<World> world, std::vector<int> members, std::string name);

  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] const std::vector<int>& members() const { return members_; }
  [[nodiscard]] const std::shared_ptr<World>& world() const { return world_; }

  /// The tasks of a call, in this order. Each throws CommError once the world has failed.
  void arrive(const Call& call);
  void work(const Call& call, int step);
  void depart(const Call& call);
  /// In place of a task whose stream had failed before.
  void skip(const Call& call, const std::exception_ptr& error) noexcept;

  /// Whether the level has been passed; may throw CommError in place of false.
  [[nodiscard]] bool passed(const Call& call, int level);
  /// Blocks until it has.
  void await(const Call& call, int level);
  [[nodiscard]] std::string describe(const Call& call, int level);

  /// Of the call of a split: the group of the ranks that gave the same color.
  [[nodiscard]] std::shared_ptr<LocalGroup> child(const Call& call);

  /// Rank `rank` has issued that many collectives and will issue no more.
  void end(int rank, std::int64_t issued, bool by_exception) noexcept;

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
  [[noreturn]] void leave(Lock& lock, const Call& call);
  void wait_for_workers(Lock& lock, const Call& call);
  std::vector<int> absent_from(const Slot& slot, int level) const;
  std::string timeout_message(const Call& call, int level);
  std::map<int, std::shared_ptr<LocalGroup>> make_children(const Slot& slot) const;
  [[nodiscard]] std::string place(std::int64_t sequence) const;
  [[nodiscard]] std::string full_name(const Call& call) const;

  const std::shared_ptr<World> world_;
  const std::vector<int> members_;
  const std::string name_;
  // Guarded by the world's mutex.
  std::array<Slot, 2> slots_;
  std::vector<std::int64_t> departed_;  ///< collectives that each rank is done with
  std::vector<Ended> ended_;
  int waiting_for_turn_ = 0;
};

/// Opens when the call has passed the level.
class LevelGate final : public internal::Gate {
 public:
  LevelGate(std::shared_ptr<const Call> call, int level) : call_(std::move(call)), level_(level) {}
  [[nodiscard]] bool open() override { return call_->group->passed(*call_, level_); }
  void wait() override { call_->group->await(*call_, level_); }
  [[nodiscard]] std::string describe() const override {
    return call_->group->describe(*call_, level_);
  }

 private:
  std::shared_ptr<const Call> call_;
  int level_;
};

}  // namespace zero3::local
