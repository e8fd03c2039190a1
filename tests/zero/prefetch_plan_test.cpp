#include "prefetch_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace zero3::test {
namespace {

std::vector<GroupId> ids(const std::vector<int>& indices) {
  std::vector<GroupId> groups;
  for (const int index : indices) groups.push_back({index});
  return groups;
}

std::vector<int> upcoming(const PrefetchPlan& plan) {
  std::vector<int> indices;
  for (const GroupId group : plan.upcoming()) indices.push_back(group.index);
  return indices;
}

void run(PrefetchPlan& plan, const std::vector<int>& uses) {
  plan.begin();
  for (const GroupId group : ids(uses)) plan.used(group);
  plan.end();
}

using Indices = std::vector<int>;

TEST(PrefetchPlan, NothingIsExpectedWithoutADeclaration) {
  PrefetchPlan plan;
  plan.begin();
  plan.used({0});
  EXPECT_EQ(upcoming(plan), Indices());
}

TEST(PrefetchPlan, TellsTheDeclaredOrderFromTheLastUseOn) {
  PrefetchPlan plan(ids({0, 1, 2, 2, 1, 0}));
  plan.begin();
  plan.used({0});
  plan.used({1});
  EXPECT_EQ(upcoming(plan), Indices({2, 2, 1, 0}));
}

TEST(PrefetchPlan, TheSecondUseOfAGroupIsFoundAfterTheFirst) {
  PrefetchPlan plan(ids({0, 1, 1, 0}));
  plan.begin();
  for (const GroupId group : ids({0, 1, 1})) plan.used(group);
  EXPECT_EQ(upcoming(plan), Indices({0}));
}

TEST(PrefetchPlan, SkippedGroupsArePassed) {
  PrefetchPlan plan(ids({0, 1, 2, 3}));
  plan.begin();
  plan.used({0});
  plan.used({2});
  EXPECT_EQ(upcoming(plan), Indices({3}));
}

TEST(PrefetchPlan, NothingIsKnownAfterAnUnexpectedGroup) {
  PrefetchPlan plan(ids({0, 1, 2}));
  plan.begin();
  plan.used({2});
  plan.used({1});
  EXPECT_EQ(upcoming(plan), Indices());
}

TEST(PrefetchPlan, ACompletedPassIsExpectedNext) {
  PrefetchPlan plan(ids({0, 1, 2}));
  run(plan, {2, 0});
  plan.begin();
  plan.used({2});
  EXPECT_EQ(upcoming(plan), Indices({0}));
}

TEST(PrefetchPlan, APassThatWasNotCompletedIsForgotten) {
  PrefetchPlan plan(ids({0, 1, 2}));
  plan.begin();
  plan.used({2});
  plan.begin();
  plan.used({0});
  EXPECT_EQ(upcoming(plan), Indices({1, 2}));
}

// C12: no re-recording without end, and no stale expectation.
TEST(PrefetchPlan, AlternatingPassesAreFollowedFromTheirCommonGroupOn) {
  PrefetchPlan plan;
  for (int round = 0; round < 5; ++round) {
    run(plan, {0, 1, 3});
    run(plan, {0, 2, 3});
  }
  plan.begin();
  plan.used({0});
  EXPECT_EQ(upcoming(plan), Indices({2, 3}));
  plan.used({1});
  EXPECT_EQ(upcoming(plan), Indices());
}

}  // namespace
}  // namespace zero3::test
