#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "support/program.h"

namespace zero3::test {
namespace {

std::vector<Json> bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bench");
  const Ended ended = zero3_program(arguments);
  EXPECT_EQ(ended.status, 0) << ended.err;
  std::vector<Json> lines;
  for (const std::string& line : ended.out_lines()) lines.push_back(Json::parse(line));
  return lines;
}

TEST(BenchCommand, StepPrintsTheFieldsOfThePeers) {
  const std::vector<Json> lines =
      bench({"step", "--model", "tiny", "--batch", "2", "--seq", "16", "--steps", "4"});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(keys_of(lines[0]),
            (std::vector<std::string>{"peer", "shape", "params", "dtype", "ranks",
                                      "threads_per_rank", "batch", "seq", "checkpoint", "step_ms",
                                      "tokens_per_s", "gflops", "peak_rss_mib", "losses"}));
  EXPECT_EQ(lines[0]["losses"].size(), 4U);
  EXPECT_NEAR(lines[0]["losses"][0].get<double>(), std::log(256.0), 0.1);
}

TEST(BenchCommand, StepRunsLocalRanks) {
  const Json line = bench({"step", "--model", "tiny", "--batch", "1", "--seq", "16", "--steps", "3",
                           "--threads", "1", "--ranks", "2"})[0];
  EXPECT_EQ(line["ranks"], 2);
  EXPECT_EQ(line["threads_per_rank"], 1);
  EXPECT_NEAR(line["losses"][0].get<double>(), std::log(256.0), 0.1);
}

TEST(BenchCommand, GemmHasALineForEachProductAndDirection) {
  const std::vector<Json> lines =
      bench({"gemm", "--model", "tiny", "--rows", "16", "--threads", "1"});
  std::set<std::pair<std::string, std::string>> seen;
  for (const Json& line : lines) {
    EXPECT_GT(line["gflops"].get<double>(), 0) << line;
    seen.emplace(line["product"].get<std::string>(), line["op"].get<std::string>());
  }
  EXPECT_EQ(seen.size(), 18U);
}

TEST(BenchCommand, CommSaysWhatARankReceives) {
  const std::vector<Json> lines = bench({"comm", "--elements", "8192", "--ranks", "4"});
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0]["op"], "all_gather");
  EXPECT_EQ(lines[0]["received_bytes"], 3 * 2048 * 4);
  EXPECT_EQ(lines[1]["dtype"], "bf16");
  EXPECT_EQ(lines[1]["received_bytes"], 3 * 2048 * 2);
}

TEST(BenchCommand, OptimizerComparesUpdatesWithACopy) {
  const std::vector<Json> lines = bench({"optimizer", "--elements", "4096", "--threads", "1"});
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["op"], "adamw");
  EXPECT_EQ(lines[2]["op"], "copy");
}

}  // namespace
}  // namespace zero3::test
