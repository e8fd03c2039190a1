// Ranks of mpirun that die, stall or deviate at random moments: the others say which, and nothing
// is left behind.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <zero3/error.h>
#include <zero3/philox.h>
#include "program/mpirun.h"
#include "support/contains.h"

namespace zero3::test {
namespace {

/// What a survivor's line has to say when rank 1 is struck.
const std::map<std::string, std::vector<std::string_view>> kLines = {
    {"kill", {"rank 1 has died (process ", "); this rank waits in collective #", " of '"}},
    {"stop", {"collective #", " of '", "rank 1", " after 1 s"}},
    {"exit", {"rank 1 has died (process ", "); this rank waits in collective #", " of '"}},
    {"throw", {"rank 1", "collective #", " of 'block."}},
    {"fewer", {"collective #", " of '", "rank 1 has ended after "}},
    {"swap", {"collective #", "all_gather of 'block.0'", "all_gather of 'block.1'", "rank 1"}},
    {"missing", {"rank 1 has nothing more", "'block.2.b'"}},
};

/// Times each fault strikes; more for a thorough look.
int repeats() {
  const char* given = std::getenv("ZERO3_REPEATS");
  return given == nullptr ? 1 : std::atoi(given);
}

/// Names of what is shared between processes; other tests may run beside this one.
std::set<std::string> shared_memory() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename());
  }
  return names;
}

/// Processes whose command line has `word`.
int processes_with(const std::string& word) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (content_of(entry.path() / "cmdline").find(word) != std::string::npos) ++count;
  }
  return count;
}

/// Those that were not there before and do not go.
std::set<std::string> left_over(const std::set<std::string>& before) {
  std::set<std::string> left = shared_memory();
  std::erase_if(left, [&](const std::string& name) { return before.contains(name); });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!left.empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const std::set<std::string> now = shared_memory();
    std::erase_if(left, [&](const std::string& name) { return !now.contains(name); });
  }
  return left;
}

using FaultCase = std::tuple<std::string, int, std::string>;  // fault, ranks, path

class MpiFailures : public testing::TestWithParam<FaultCase> {
 protected:
  void SetUp() override { skip_without_mpirun(); }
};

TEST_P(MpiFailures, SurvivorsNameTheRankAndNothingIsLeft) {
  const auto& [fault, ranks, path] = GetParam();
  const std::set<std::string> before = shared_memory();
  // Found again among all processes.
  const std::string mark = concat("mark-of-", fault, ranks, path);
  for (int repeat = 0; repeat < repeats(); ++repeat) {
    const auto random = philox({static_cast<std::uint32_t>(repeat)}, {7, 11})[0];
    const std::string after = std::to_string(200 + random % 800);
    const Ended ended = mpirun(ranks, {ZERO3_RANK_WITH_FAULT, fault, "1", after, path, mark});
    EXPECT_GT(ended.status, 0) << after << '\n' << ended.err;
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == 1) continue;
      const std::string line = line_of(ended.err, concat("zero3: [rank ", rank, "] "));
      EXPECT_TRUE(contains(line, kLines.at(fault))) << after << '\n' << ended.err;
    }
    const std::string own = line_of(ended.err, "rank 1: ");
    EXPECT_EQ(own, fault == "throw" ? "no more paper" : own) << ended.err;
    EXPECT_EQ(processes_with(mark), 0);
  }
  EXPECT_EQ(left_over(before), std::set<std::string>());
}

INSTANTIATE_TEST_SUITE_P(
    , MpiFailures,
    testing::Combine(testing::Values("kill", "stop", "exit", "throw", "fewer", "swap", "missing"),
                     testing::Values(2, 4), testing::Values("auto", "messages")),
    [](const testing::TestParamInfo<FaultCase>& test_case) {
      return std::get<0>(test_case.param) + std::to_string(std::get<1>(test_case.param)) +
             std::get<2>(test_case.param);
    });

// Its process shows signs of life.
TEST(MpiTraining, ABusyRankIsNotTakenForASilentOne) {
  skip_without_mpirun();
  const Ended ended = mpirun(2, {ZERO3_RANK_WITH_FAULT, "busy", "1", "100", "messages"});
  EXPECT_GT(ended.status, 0);
  EXPECT_TRUE(contains(line_of(ended.err, "zero3: [rank 0] "), {"rank 1 absent after 5 s"}));
  EXPECT_FALSE(contains(ended.err, {"no sign of life"}));
}

TEST(MpiTraining, EndsWellAndLeavesNothing) {
  skip_without_mpirun();
  for (const char* path : {"auto", "messages"}) {
    const Ended ended = mpirun(3, {ZERO3_RANK_WITH_FAULT, "none", "0", "0", path});
    EXPECT_EQ(ended.status, 0) << ended.err;
    EXPECT_EQ(ended.err, "");
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(line_of(ended.out, concat(rank, ": ")), concat(rank, " of 3")) << path;
    }
  }
}

}  // namespace
}  // namespace zero3::test
