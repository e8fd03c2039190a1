#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace zero3::local {

/// Why nothing works any more.
struct Failure {
  std::string message;
  /// The rank whose own exception is the cause; -1: it lies between ranks.
  int culprit = -1;
  /// The message names the operation; others are thrown behind the name of the one that was hit.
  bool names_operation = false;
};

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
  /// Numbers the communicators that were made by splitting.
  int splits = 0;

 private:
  std::chrono::milliseconds timeout_;
  std::optional<Failure> failure_;
};

/// "30 s", "250 ms".
[[nodiscard]] std::string text_of(std::chrono::milliseconds duration);
/// "rank 1", "ranks 0, 2"; `ranks` is not empty.
template <class Ranks>
[[nodiscard]] std::string text_of_ranks(const Ranks& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const char* separator = "";
  for (const int rank : ranks) {
    text += separator + std::to_string(rank);
    separator = ", ";
  }
  return text;
}
/// What a caught exception says.
[[nodiscard]] std::string text_of(const std::exception_ptr& error);

}  // namespace zero3::local
