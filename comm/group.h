#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <zero3/communicator.h>
#include <zero3/error.h>
#include <zero3/internal/cpu_stream.h>
#include "failure.h"
#include "header.h"
#include "step.h"

namespace zero3::collective {

class Group;
struct Call;

/// One rank's part in one collective; lives as long as its tasks.
struct Call {
  std::shared_ptr<Group> group;
  int rank;
  std::int64_t sequence;
  Header header;
  /// What peers read, where tasks may touch it.
  const void* source = nullptr;
  int color = 0, key = 0;
  std::vector<Step> steps = {};
};

/// Ranks that share one order of collectives.
///
/// [Note: levels] A call passes levels: 0 when all ranks have arrived, k when all have done step
/// k - 1. Step k waits for level k, and the departure for the last, so that a rank's memory is read
/// (in place; a group may send it instead) only while its stream stands in the call. A rank arrives
/// at a collective after it has departed from the one before, so no more than two collectives are
/// under way and two slots serve all.
class Group {
 public:
  static constexpr int kMostSteps = 2;
  /// Not a level: passed when the rank has departed from the collective before.
  static constexpr int kTurn = -1;

  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Ranks of the world, by rank of this group.
  [[nodiscard]] const std::vector<int>& members() const { return members_; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }

  /// The tasks of a call, in this order. Each throws CommError once the world has failed.
  virtual void arrive(const Call& call) = 0;
  virtual void work(const Call& call, int step) = 0;
  virtual void depart(const Call& call) = 0;
  /// In place of a task whose stream had failed before.
  virtual void skip(const Call& call, const std::exception_ptr& error) noexcept = 0;

  /// Whether the level has been passed; may throw CommError in place of false.
  [[nodiscard]] virtual bool passed(const Call& call, int level) = 0;
  /// Blocks until it has.
  virtual void await(const Call& call, int level) = 0;
  [[nodiscard]] virtual std::string describe(const Call& call, int level) = 0;

  /// In the step of a split: this rank's end in the group of the ranks that gave the same color.
  [[nodiscard]] virtual std::unique_ptr<Communicator> child(const Call& call) = 0;

  /// Rank `rank` has issued that many collectives and will issue no more.
  virtual void end(int rank, std::int64_t issued, bool by_exception) noexcept = 0;
  /// Every operation of the world fails from now on; `rank` is the cause.
  virtual void abort(int rank, std::string_view reason) noexcept = 0;

 protected:
  /// `name` is empty for the whole world.
  Group(std::vector<int> members, std::string name)
      : members_(std::move(members)), name_(std::move(name)) {}

  [[nodiscard]] int in_world(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  /// "collective #7", and of which communicator.
  [[nodiscard]] std::string place(std::int64_t sequence) const;
  [[nodiscard]] std::string full_name(const Call& call) const;

  // Failures, in one wording for all groups; ranks are those of the world.

  [[nodiscard]] Failure mismatch(const Call& call, std::span<const int> others,
                                 const Header& other) const;
  /// Rank `rank` of the group has ended while `waiting` wait for it in `call`.
  [[nodiscard]] Failure ended(int rank, std::int64_t issued, bool by_exception,
                              std::span<const int> waiting, const Call& call) const;
  [[nodiscard]] Failure too_late(const Call& call, int level, std::span<const int> absent,
                                 std::chrono::milliseconds timeout) const;
  [[nodiscard]] Failure step_failed(const Call& call, const std::exception_ptr& error) const;
  [[nodiscard]] Failure stream_failed(const Call& call, const std::exception_ptr& error) const;
  [[nodiscard]] std::string description(const Call& call, int level,
                                        std::span<const int> absent) const;
  /// What the call's stream throws after a failure of the world.
  [[nodiscard]] CommError error(const Call& call, const Failure& failure) const;

 private:
  std::vector<int> members_;
  std::string name_;
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

}  // namespace zero3::collective
