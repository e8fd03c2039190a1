#include "process/process_group.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/worlds.h"
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

/// A rank's part in two communicators: of ranks 0, 1, 2 and of ranks 0, 1.
class Part {
 public:
  Part(const std::shared_ptr<process::ProcessWorld>& world, int rank)
      : rank_(rank), all_(world, 0, {0, 1, 2}, rank, ""), two_(world, 1, {0, 1}, rank, "two") {}

  void collective_of_all(std::chrono::milliseconds busy = 0ms) { collective(all_, busy); }
  void collective_of_two() { collective(two_, 0ms); }

 private:
  /// The next collective there; its one step is to be busy.
  void collective(process::ProcessGroup& group, std::chrono::milliseconds busy) {
    const Call call = {.group = nullptr,
                       .rank = rank_,
                       .sequence = sequences_[&group]++,
                       .header = {.operation = "barrier", .label = "b"},
                       .steps = {{.name = "step", .finish = [&](const Call&) { sleep(busy); }}}};
    group.arrive(call);
    group.await(call, 0);
    group.work(call, 0);
    group.await(call, 1);
    group.depart(call);
  }

  int rank_;
  process::ProcessGroup all_, two_;
  std::map<process::ProcessGroup*, std::int64_t> sequences_;
};

/// What each rank ends with.
std::vector<std::string> errors_of(int near, const std::array<std::function<void(Part&)>, 3>& of) {
  ProcessWorlds worlds(3, near, kTimeout);
  std::vector<std::string> errors(3);
  std::vector<std::thread> ranks;
  ranks.reserve(3);
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      Part part(worlds.world(rank), rank);
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
TEST(ProcessGroup, OfAbsentRanksThoseThatWaitThemselvesAreNotNamed) {
  const auto errors = errors_of(2, {[](Part& part) { part.collective_of_all(50ms); },
                                    [](Part& part) { part.collective_of_all(kStuck); },
                                    [](Part& part) { part.collective_of_all(); }});
  for (const std::string& error : errors) EXPECT_TRUE(contains(error, {": rank 1 "}));
}

// Rank 1 is the first to run out of time, and waits for rank 0 alone.
TEST(ProcessGroup, AChainOfWaitsIsFollowedToItsEnd) {
  for (const int near : {1, 2, 3}) {
    const auto errors = errors_of(
        near, {[](Part& part) {
                 sleep(50ms);
                 part.collective_of_all();
               },
               [](Part& part) { part.collective_of_two(); }, [](Part&) { sleep(kStuck); }});
    for (const std::string& error : errors) {
      EXPECT_TRUE(contains(error, {"collective #1, barrier of 'b'", "rank 2 absent after 400 ms"}))
          << near;
    }
  }
}

TEST(ProcessGroup, RanksThatWaitForEachOtherAreNamedAndSaySo) {
  const auto in_all = [](Part& part) { part.collective_of_all(); };
  const auto in_two = [](Part& part) { part.collective_of_two(); };
  for (const int near : {1, 3}) {
    const auto errors = errors_of(near, {in_all, in_two, in_all});
    for (const std::string& error : errors) {
      EXPECT_TRUE(contains(error, {" absent after 400 ms (rank ", " waits itself)"})) << near;
    }
  }
}

}  // namespace
}  // namespace zero3::test
