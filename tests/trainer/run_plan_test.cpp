#include <gtest/gtest.h>

#include <zero3/trainer/run_plan.h>
#include "support/recorded_training.h"

namespace zero3::trainer {
namespace {

using test::ToyRun;

RunPlan plan_of(const ToyRun& run, int ranks) {
  return plan_run(run.config, run.options, {.ranks = ranks, .threads = 1});
}

TEST(RunPlan, IsThePlanOfARunningRank) {
  for (const int ranks : {1, 2, 3}) {
    const ToyRun run;
    EXPECT_EQ(plan_of(run, ranks).memory, test::train_toy(run, ranks).done->planned) << ranks;
  }
}

TEST(RunPlan, CountsParameters) {
  EXPECT_EQ(plan_of({}, 3).parameters, parameter_count(test::toy_config()));
}

/// Bytes of a run's steps without its evaluations.
CommCounters traffic(ToyRun run, int ranks) {
  run.val_fraction = 0;
  return test::train_toy(run, ranks).done->comm;
}

struct TrafficCase {
  const char* name;
  bool tied;
  int accumulate;
  std::int64_t keep_below;
  friend void PrintTo(const TrafficCase& traffic, std::ostream* out) { *out << traffic.name; }
};
class PlannedTraffic : public ::testing::TestWithParam<TrafficCase> {};

TEST_P(PlannedTraffic, IsWhatMoves) {
  ToyRun run;
  run.config.tied = GetParam().tied;
  run.options.accumulate = GetParam().accumulate;
  run.options.keep_gathered_below = Elements(GetParam().keep_below);
  for (const int ranks : {1, 2, 3}) {
    const RunPlan plan = plan_of(run, ranks);
    ToyRun shorter = run;
    shorter.options.steps = 1;
    const CommCounters three = traffic(run, ranks);
    const CommCounters one = traffic(shorter, ranks);
    const auto two_steps = [&](CollectiveOp op) { return three[op].bytes - one[op].bytes; };
    EXPECT_EQ(plan.reduced_per_step * 2, two_steps(CollectiveOp::kReduceScatter)) << ranks;
    // The norm's block sums are gathered too: a few doubles for each 1024 elements.
    const Bytes others = two_steps(CollectiveOp::kAllGather) - plan.gathered_per_step * 2;
    EXPECT_GE(others, Bytes(0)) << ranks;
    EXPECT_LE(others, Bytes(2 * (ranks - 1) * 8 * 100)) << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(RunPlan, PlannedTraffic,
                         ::testing::Values(TrafficCase{"Untied", false, 1, 0},
                                           TrafficCase{"Tied", true, 1, 0},
                                           TrafficCase{"Accumulated", false, 3, 0},
                                           TrafficCase{"SmallGroupsKept", false, 2, 1000}),
                         [](const auto& test) { return test.param.name; });

TEST(RunPlan, RecomputationAddsTheForwardOfTheLayers) {
  ToyRun run;
  const double head = 6.0 * 13 * 24 * 18;
  const RunPlan plain = plan_of(run, 1);
  EXPECT_EQ(plain.model_flops, plain.executed_flops);
  run.options.checkpoints.mode = CheckpointMode::kRecompute;
  const RunPlan recomputing = plan_of(run, 1);
  EXPECT_EQ(recomputing.model_flops, plain.model_flops);
  EXPECT_DOUBLE_EQ(recomputing.executed_flops - plain.model_flops, (plain.model_flops - head) / 3);
}

TEST(RunPlan, WorkIsThatOfAllRanksAndMicroSteps) {
  ToyRun run;
  const double once = plan_of(run, 1).model_flops;
  run.options.accumulate = 5;
  EXPECT_DOUBLE_EQ(plan_of(run, 3).model_flops, 15 * once);
}

TEST(RunPlan, AutoTilesAreThereWhereTheyMakeTheWorkspaceSmaller) {
  ToyRun run;
  run.options.micro_batch = {.batch = 1, .seq = 2500};
  run.options.checkpoints.mode = CheckpointMode::kRecompute;
  const auto plan = [&](const char* tile) {
    run.options.tile = parse_tile_policy(tile);
    return plan_of(run, 1);
  };
  EXPECT_EQ(plan("auto").tiles, 1) << "the attention needs more than the MLP";
  EXPECT_GT(plan("rows=1024").tiles, 1);
  run.config.intermediate *= 100;
  EXPECT_EQ(plan("auto").tiles, 3);
  EXPECT_EQ(plan("none").tiles, 1);
  EXPECT_LT(plan("auto").memory.total(), plan("none").memory.total());
}

TEST(LongestSequence, IsTheLastThatFits) {
  const ToyRun run;
  const RunPlace place = {.ranks = 2, .threads = 1};
  const auto total = [&](std::int64_t seq) {
    TrainOptions options = run.options;
    options.micro_batch.seq = seq;
    return plan_run(run.config, options, place).memory.total();
  };
  for (const std::int64_t seq : {1, 9, 100, 1023}) {
    const LongestSequence longest = longest_sequence(run.config, run.options, place, total(seq));
    EXPECT_GE(longest.seq, seq);
    EXPECT_LE(total(longest.seq), total(seq));
    EXPECT_GT(total(longest.seq + 1), total(seq));
    EXPECT_EQ(longest.memory.total(), total(longest.seq));
  }
}

TEST(LongestSequence, IsNoneWhereTheWeightsDoNotFit) {
  const ToyRun run;
  const LongestSequence longest =
      longest_sequence(run.config, run.options, {.ranks = 1, .threads = 1}, Bytes(1000));
  EXPECT_EQ(longest.seq, 0);
  EXPECT_GT(longest.memory.total(), Bytes(1000));
}

TEST(LongestSequence, ActivationsBindWithoutRecomputation) {
  const ToyRun run;
  const LongestSequence longest =
      longest_sequence(run.config, run.options, {.ranks = 1, .threads = 1}, Bytes(1 << 24));
  EXPECT_EQ(longest.binding, MemoryTag::kActivations);
}

}  // namespace
}  // namespace zero3::trainer
