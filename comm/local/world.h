#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "failure.h"

namespace zero3::local {

using collective::Failure;

/// What all groups of one set of ranks share: one lock, one failure. The first failure of any rank
/// in any of its groups is that of all, for good.
class World {
 public:
  explicit World(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }

  /// From any thread, without the lock.
  void abort(int rank, std::string_view reason) noexcept;
  [[nodiscard]] std::optional<Failure> failure_now();

  /// Guards everything below and the state of the groups.
  std::mutex mutex;
  /// Somebody may be able to go on.
  std::condition_variable changed;
  /// Keeps the first and wakes everybody.
  void fail(Failure failure);
  [[nodiscard]] const std::optional<Failure>& failure() const { return failure_; }
  [[nodiscard]] bool failed() const { return failure_.has_value(); }
  /// Operations that each rank waits in.
  std::map<int, int> waits;
  /// Numbers the communicators that were made by splitting.
  int splits = 0;

 private:
  std::chrono::milliseconds timeout_;
  std::optional<Failure> failure_;
};

}  // namespace zero3::local
