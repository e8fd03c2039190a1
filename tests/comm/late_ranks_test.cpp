#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/worlds.h"
#include "local/local_group.h"
#include "support/contains.h"

namespace zero3::test {
namespace {

using namespace std::chrono_literals;
using collective::Call;

constexpr auto kTimeout = 400ms;
/// After which all have run out of time.
constexpr auto kStuck = 1200ms;

void sleep(std::chrono::milliseconds time) {
  std::this_thread::sleep_for(time);
}

using Groups = std::array<std::shared_ptr<collective::Group>, 2>;

/// A rank's part in two communicators: of ranks 0, 1, 2 and of ranks 0, 1.
class Part {
 public:
  Part(const Groups& groups, int rank) : rank_(rank), groups_(groups) {}

  void collective_of_all(std::chrono::milliseconds busy = 0ms) { collective(0, busy); }
  void collective_of_two() { collective(1, 0ms); }

 private:
  /// The next collective there; its one step is to be busy.
  void collective(std::size_t at, std::chrono::milliseconds busy) {
    collective::Group& group = *groups_[at];
    const Call call = {.group = nullptr,
                       .rank = rank_,
                       .sequence = sequences_[at]++,
                       .header = {.operation = "barrier", .label = "b"},
                       .steps = {{.name = "step", .finish = [&](const Call&) { sleep(busy); }}}};
    group.arrive(call);
    group.await(call, 0);
    group.work(call, 0);
    group.await(call, 1);
    group.depart(call);
  }

  int rank_;
  Groups groups_;
  std::array<std::int64_t, 2> sequences_ = {};
};

/// Of ranks that are threads.
std::function<Groups(int)> threads() {
  const auto world = std::make_shared<local::World>(kTimeout);
  Groups groups = {std::make_shared<local::LocalGroup>(world, std::vector<int>{0, 1, 2}, ""),
                   std::make_shared<local::LocalGroup>(world, std::vector<int>{0, 1}, "two")};
  return [groups](int) { return groups; };
}

/// Of ranks that are processes, as many as `near` on a machine.
std::function<Groups(int)> processes(int near) {
  const auto worlds = std::make_shared<ProcessWorlds>(3, near, kTimeout);
  return [worlds](int rank) {
    using process::ProcessGroup;
    const auto world = worlds->world(rank);
    return Groups{std::make_shared<ProcessGroup>(world, 0, std::vector<int>{0, 1, 2}, rank, ""),
                  std::make_shared<ProcessGroup>(world, 1, std::vector<int>{0, 1}, rank, "two")};
  };
}

/// What each rank ends with.
std::vector<std::string> errors_of(const std::function<Groups(int)>& groups,
                                   const std::array<std::function<void(Part&)>, 3>& of) {
  std::vector<std::string> errors(3);
  std::vector<std::thread> ranks;
  ranks.reserve(3);
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      Part part(groups(rank), rank);
      errors[at] = message_of<CommError>([&] {
        of[at](part);
        part.collective_of_all();
      });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

// Rank 1 stays in the first collective. Rank 0, which is near, waits for it there; rank 2, which is
// far, has nothing to wait for there, and is the first to run out of time: in the second.
TEST(LateRanks, OfAbsentRanksThoseThatWaitThemselvesAreNotNamed) {
  const auto errors = errors_of(processes(2), {[](Part& part) { part.collective_of_all(50ms); },
                                               [](Part& part) { part.collective_of_all(kStuck); },
                                               [](Part& part) { part.collective_of_all(); }});
  for (const std::string& error : errors) EXPECT_TRUE(contains(error, {": rank 1 "}));
}

// Rank 1 is the first to run out of time, and waits for rank 0 alone.
TEST(LateRanks, AChainOfWaitsIsFollowedToItsEnd) {
  const auto late = [](Part& part) {
    sleep(50ms);
    part.collective_of_all();
  };
  const auto in_two = [](Part& part) { part.collective_of_two(); };
  const auto stuck = [](Part&) { sleep(kStuck); };
  for (const auto& groups : {threads(), processes(1), processes(2), processes(3)}) {
    const auto errors = errors_of(groups, {late, in_two, stuck});
    for (const std::string& error : errors) {
      EXPECT_TRUE(contains(error, {"collective #1, barrier of 'b'", "rank 2 absent after 400 ms"}));
    }
  }
}

TEST(LateRanks, RanksThatWaitForEachOtherAreNamedAndSaySo) {
  const auto in_all = [](Part& part) { part.collective_of_all(); };
  const auto in_two = [](Part& part) { part.collective_of_two(); };
  for (const auto& groups : {threads(), processes(1), processes(3)}) {
    const auto errors = errors_of(groups, {in_all, in_two, in_all});
    for (const std::string& error : errors) {
      EXPECT_TRUE(contains(error, {" absent after 400 ms (rank ", " waits itself)"}));
    }
  }
}

}  // namespace
}  // namespace zero3::test
