#include <zero3/local_world.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include <zero3/error.h>
#include "local/local_group.h"

namespace zero3 {
namespace {

using local::LocalGroup;
using local::World;

std::shared_ptr<LocalGroup> make_root(int size, std::chrono::milliseconds timeout) {
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return std::make_shared<LocalGroup>(std::make_shared<World>(timeout), std::move(members), "");
}

}  // namespace

struct LocalWorld::State {
  State(int ranks, std::chrono::milliseconds longest_wait)
      : size(ranks),
        timeout(longest_wait),
        root(make_root(ranks, longest_wait)),
        taken(static_cast<std::size_t>(ranks)) {}

  int size;
  std::chrono::milliseconds timeout;
  std::shared_ptr<LocalGroup> root;
  std::mutex mutex;
  std::vector<bool> taken;  ///< guarded by mutex
};

LocalWorld::LocalWorld(int size, std::chrono::milliseconds timeout) {
  ZERO3_CHECK(size >= 1, "a world of ", size, " ranks; give 1 or more");
  ZERO3_CHECK(timeout.count() > 0, "a timeout of ", timeout.count(), " ms; give 1 or more");
  // A longer one would overflow the clock when it is added to the time.
  const auto longest = std::chrono::hours(24 * 365);
  state_ = std::make_unique<State>(size, std::min<std::chrono::milliseconds>(timeout, longest));
}

LocalWorld::~LocalWorld() = default;

int LocalWorld::size() const {
  return state_->size;
}

std::unique_ptr<Communicator> LocalWorld::communicator(int rank) {
  ZERO3_CHECK(rank >= 0 && rank < size(), "rank ", rank, " is not in a world of ", size());
  {
    const std::scoped_lock lock(state_->mutex);
    auto taken = state_->taken.begin() + rank;
    ZERO3_CHECK(!*taken, "the communicator of rank ", rank,
                " was taken before; use duplicate() for another one");
    *taken = true;
  }
  return local::make_end(state_->root, rank);
}

void LocalWorld::run(const std::function<void(Communicator&)>& rank_main) {
  run([&](std::unique_ptr<Communicator> communicator) {
    try {
      rank_main(*communicator);
    } catch (...) {
      communicator->abort(collective::text_of(std::current_exception()));
      throw;
    }
  });
}

void LocalWorld::run(const std::function<void(std::unique_ptr<Communicator>)>& rank_main) {
  const std::shared_ptr<LocalGroup> root = make_root(size(), state_->timeout);
  std::mutex mutex;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size()));
  std::exception_ptr first;
  const auto run_rank = [&](int rank) {
    try {
      rank_main(local::make_end(root, rank));
    } catch (...) {
      const std::scoped_lock lock(mutex);
      errors[static_cast<std::size_t>(rank)] = std::current_exception();
      if (first == nullptr) first = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (int rank = 1; rank < size(); ++rank) threads.emplace_back(run_rank, rank);
    } catch (const std::system_error& error) {
      // Those that run would wait for one that never comes.
      root->world()->abort(static_cast<int>(threads.size()) + 1, error.what());
      throw;
    }
    run_rank(0);
  }
  if (first == nullptr) return;
  // What the others throw tells of the culprit's error, and may have been caught before it.
  const std::optional<collective::Failure> failure = root->world()->failure_now();
  const int culprit = failure ? failure->culprit : -1;
  if (culprit >= 0 && errors[static_cast<std::size_t>(culprit)] != nullptr) {
    std::rethrow_exception(errors[static_cast<std::size_t>(culprit)]);
  }
  std::rethrow_exception(first);
}

}  // namespace zero3
