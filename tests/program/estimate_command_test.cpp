#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/contains.h"
#include "support/program.h"

namespace zero3::test {
namespace {

Json estimate(std::vector<std::string> flags) {
  flags.insert(flags.begin(), "estimate");
  flags.push_back("--json");
  const Ended ended = zero3_program(flags);
  EXPECT_EQ(ended.status, 0) << ended.err;
  return ended.status == 0 ? Json::parse(ended.out) : Json();
}

std::int64_t total(const Json& bytes) {
  std::int64_t sum = 0;
  for (const auto& [tag, count] : bytes.items()) sum += count.get<std::int64_t>();
  return sum;
}

TEST(EstimateCommand, PlansWhatTrainingPlans) {
  const TempDir dir;
  const std::vector<std::string> flags = {"--batch", "2",       "--seq", "33",      "--threads",
                                          "1",       "--ranks", "3",     "--dtype", "bf16"};
  EXPECT_EQ(estimate(flags)["planned_bytes"],
            train_tiny(write_text(dir, 20000), flags).done["planned_bytes"]);
}

TEST(EstimateCommand, TotalIsTheSumOfTags) {
  const Json json = estimate({"--model", "30m"});
  EXPECT_EQ(json["planned_total_bytes"], total(json["planned_bytes"]));
}

TEST(EstimateCommand, CountsParametersOfNamedModels) {
  EXPECT_EQ(estimate({"--model", "30m"})["parameters"], 29938560);
  EXPECT_EQ(estimate({"--model", "135m"})["parameters"], 134515008);
}

TEST(EstimateCommand, PlansManyRanksWithoutMemoryForThem) {
  const Json json = estimate({"--model", "135m", "--ranks", "64"});
  EXPECT_GE(json["planned_bytes"]["optimizer"].get<std::int64_t>(), 134515008 * 8 / 64);
  EXPECT_LE(json["planned_bytes"]["optimizer"].get<double>(), 134515008 * 8 / 64 * 1.05);
}

TEST(EstimateCommand, OneRankReceivesNothing) {
  EXPECT_EQ(estimate({})["received_bytes_per_step"],
            Json({{"all_gather", 0}, {"reduce_scatter", 0}}));
}

TEST(EstimateCommand, LongestSequenceFillsTheDevice) {
  const Json json = estimate({"--model", "30m", "--batch", "1", "--checkpoint-activations",
                              "recompute", "--device-memory", "2GiB"});
  const std::int64_t planned = total(json["longest_seq_planned_bytes"]);
  EXPECT_LE(planned, std::int64_t{2} << 30);
  EXPECT_GT(planned, (std::int64_t{2} << 30) - (std::int64_t{1} << 20));
  EXPECT_GT(json["longest_seq"], 1000);
}

TEST(EstimateCommand, TableNamesTagsTrafficWorkAndTheLongestSequence) {
  const Ended ended = zero3_program({"estimate", "--ranks", "2", "--device-memory", "1GiB"});
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, {"shards", "optimizer", "total", "all-gather", "reduce-scatter",
                                   "floating-point work", "longest sequence"}));
}

TEST(EstimateCommand, PlansWhereLayerInputsWait) {
  const auto plan = [](const char* mode, std::vector<std::string> more) {
    more.insert(more.end(), {"--model", "30m", "--device", "cpu:sim", "--checkpoint-activations",
                             mode, "--batch", "1", "--seq", "4096"});
    return estimate(std::move(more));
  };
  const std::int64_t input = 4096 * 384 * 4;
  const Json kept = plan("recompute", {}), host = plan("host", {});
  const Json disk = plan("disk", {"--offload-dir", "/nowhere"});
  EXPECT_EQ(kept["planned_bytes"]["checkpoints"], 6 * input);
  EXPECT_EQ(host["planned_bytes"]["checkpoints"], 2 * input);
  EXPECT_EQ(disk["planned_bytes"]["checkpoints"], 2 * input);
  EXPECT_EQ(host["planned_bytes"]["host_checkpoints"], 4 * input);
  EXPECT_EQ(disk["planned_disk_bytes"], 4 * input);
  EXPECT_EQ(kept["planned_total_bytes"].get<std::int64_t>() - 4 * input,
            host["planned_total_bytes"]);
}

TEST(EstimateCommand, NeedsNoLauncherAndNoData) {
  EXPECT_EQ(zero3_program({"estimate"},
                          {.environment = {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4"}})
                .status,
            0);
}

}  // namespace
}  // namespace zero3::test
