#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include <zero3/communicator.h>

namespace zero3 {

/// `size` ranks in this process, over memory that they share: each reads its peers' views in place,
/// nothing is staged. For streams of CPU devices. Thread-safe.
///
/// A rank waits at most `timeout` for the others in one operation; the error names those that are
/// absent and do not wait for others themselves. Where all of them do, 0.4 s later, it names all.
/// The first error of any rank, in any communicator split from the world, is the error of all of
/// them from then on. A rank whose communicator is destroyed while others wait for it there is such
/// an error, at once; what it had issued before still runs. Errors call ranks by their number in
/// the world.
class LocalWorld {
 public:
  explicit LocalWorld(int size, std::chrono::milliseconds timeout = std::chrono::minutes(5));
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  [[nodiscard]] int size() const;
  /// Rank `rank`'s end; once per rank. May outlive this object.
  [[nodiscard]] std::unique_ptr<Communicator> communicator(int rank);

  /// Runs `rank_main(communicator)` for every rank, rank 0 on the calling thread and the others
  /// each on one of its own, and returns when all have ended. Every run is a world of its own. What
  /// one rank throws aborts the others; the error that came first is rethrown, with its type.
  void run(const std::function<void(Communicator&)>& rank_main);
  /// The same for ranks that own their end, so that it can end before other things of theirs do.
  void run(const std::function<void(std::unique_ptr<Communicator>)>& rank_main);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The group of one: no socket, no thread, no wait, on any device. A gather whose shard is the full
/// view, an all_reduce, a broadcast and a barrier enqueue nothing. After abort() what is enqueued
/// fails; what was enqueued before waits for nobody and runs to its end.
[[nodiscard]] std::unique_ptr<Communicator> make_self_communicator();

}  // namespace zero3
