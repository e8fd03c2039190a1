#include <zero3/memory_plan.h>

#include <gtest/gtest.h>

#include <zero3/error.h>
#include "support/contains.h"
#include "support/thrown.h"

namespace zero3::test {
namespace {

MemoryPlan plan_of(std::int64_t shards, std::int64_t workspace) {
  MemoryPlan plan;
  plan[MemoryTag::kShards] = Bytes(shards);
  plan[MemoryTag::kWorkspace] = Bytes(workspace);
  return plan;
}

TEST(MemoryPlan, PlansAddUpTagByTag) {
  EXPECT_EQ(plan_of(64, 128) + plan_of(64, 0), plan_of(128, 128));
}

TEST(MemoryPlan, TableNamesEveryTagAndTheTotal) {
  const std::string table = to_table(plan_of(1 << 20, 3 << 20));
  EXPECT_TRUE(contains(table, {"shards", "gathered", "grads", "optimizer", "activations",
                               "checkpoints", "workspace", "total", "1.0 MiB", "4.0 MiB"}));
}

TEST(MemoryPlan, APlanAsLargeAsTheLimitFits) {
  EXPECT_NO_THROW(check_plan(plan_of(100, 28), Bytes(128)));
}

TEST(MemoryPlan, APlanAboveTheLimitIsRefusedWithTheSmallestThatWorks) {
  EXPECT_TRUE(contains(thrown<UsageError>([] { check_plan(plan_of(100, 28), Bytes(127)); }),
                       {"needs 128 bytes", "limit is 127", "smallest limit that works is 128"}));
}

}  // namespace
}  // namespace zero3::test
