#include <gtest/gtest.h>

#include <thread>

#include <zero3/error.h>

#include "comm/worlds.h"
#include "support/contains.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

class Split : public ::testing::TestWithParam<TestWorld> {};
INSTANTIATE_TEST_SUITE_P(, Split,
                         ::testing::Values(kThreads, stepped(1), stepped(2), kProcesses, kMessages,
                                           kPairs),
                         world_name);

TEST_P(Split, RanksOfOneColorFormAGroupOrderedByKey) {
  run_ranks(
      5,
      [](Rank& r) {
        // Ranks 0, 2, 4 in descending order, ranks 1, 3 in ascending order.
        const int color = r.rank % 2 == 0 ? -7 : 7;
        const int key = color < 0 ? -r.rank : 0;
        const auto group = r.communicator->split(color, key, *r.stream);
        EXPECT_EQ(group->world_size(), color < 0 ? 3 : 2);
        EXPECT_EQ(group->rank(), color < 0 ? 2 - r.rank / 2 : r.rank / 2);

        const Buffer own = r.upload(std::vector<float>{static_cast<float>(r.rank)});
        const Buffer all = r.allocate(group->world_size());
        group->all_gather(all.view(), own.view(), "w", *r.stream);
        EXPECT_EQ(r.download<float>(all.view()),
                  color < 0 ? (std::vector<float>{4, 2, 0}) : (std::vector<float>{1, 3}));
      },
      options_of(GetParam()));
}

TEST_P(Split, GroupsOfGroupsWork) {
  run_ranks(
      4,
      [](Rank& r) {
        const auto half = r.communicator->split(r.rank / 2, 0, *r.stream);
        const auto again = half->duplicate(*r.stream);
        const Buffer values = r.upload(std::vector<float>{static_cast<float>(r.rank)});
        again->all_reduce(values.view(), "n", *r.stream);
        EXPECT_EQ(r.download<float>(values.view())[0], r.rank < 2 ? 1.0F : 5.0F);
      },
      options_of(GetParam()));
}

TEST_P(Split, GroupsHaveCountersOfTheirOwnAndASplitIsNotCounted) {
  run_ranks(
      2,
      [](Rank& r) {
        const auto other = r.communicator->duplicate(*r.stream);
        other->barrier("e", *r.stream);
        r.stream->synchronize();
        EXPECT_EQ(other->counters()[CollectiveOp::kBarrier].count, 1);
        for (std::size_t op = 0; op < kCollectiveOpCount; ++op) {
          EXPECT_EQ(r.communicator->counters().by_op[op].count, 0);
        }
      },
      options_of(GetParam()));
}

TEST_P(Split, CommunicatorsOnTwoStreamsDoNotWaitForEachOther) {
  run_ranks(
      2,
      [](Rank& r) {
        const auto second = r.communicator->duplicate(*r.stream);
        const auto side = r.device->make_stream({.name = "side"});
        const Buffer a = r.upload(std::vector<float>(3, 1.0F));
        const Buffer b = r.upload(std::vector<float>(3, 2.0F));
        // In one order of both, rank 0 would wait for rank 1 and rank 1 for rank 0.
        if (r.rank == 0) {
          r.communicator->all_reduce(a.view(), "a", *r.stream);
          second->all_reduce(b.view(), "b", *side);
          side->synchronize();
        } else {
          second->all_reduce(b.view(), "b", *side);
          side->synchronize();
          r.communicator->all_reduce(a.view(), "a", *r.stream);
        }
        EXPECT_EQ(r.download<float>(a.view()), std::vector<float>(3, 2.0F));
        EXPECT_EQ(r.download<float>(b.view()), std::vector<float>(3, 4.0F));
      },
      options_of(GetParam()));
}

TEST_P(Split, ErrorsNameRanksOfTheWorldAndTheGroup) {
  std::vector<std::string> messages(4);
  run_ranks(
      4,
      [&](Rank& r) {
        std::string& message = messages[static_cast<std::size_t>(r.rank)];
        try {
          const auto pair = r.communicator->split(r.rank % 2, 0, *r.stream);
          if (r.rank % 2 == 0) return;
          pair->barrier(r.rank == 1 ? "x" : "y", *r.stream);
          r.stream->synchronize();
        } catch (const CommError& error) {
          message = error.what();
        }
      },
      options_of(GetParam()));
  for (const std::size_t rank : {0U, 1U, 2U, 3U}) {
    // A failure is the whole world's: a rank of the other pair meets it if it is in its split yet.
    if (rank % 2 == 0 && messages[rank].empty()) continue;
    EXPECT_TRUE(contains(messages[rank], {"collective #1 of communicator 2 (ranks 1, 3)", "rank 1 ",
                                          "barrier of 'x'", "rank 3 ", "barrier of 'y'"}));
  }
}

TEST_P(Split, OfAGroupThatHasFailedIsAnError) {
  run_ranks(
      2,
      [](Rank& r) {
        r.communicator->abort("no more");
        EXPECT_THROW(static_cast<void>(r.communicator->duplicate(*r.stream)), CommError);
      },
      options_of(GetParam()));
}

}  // namespace
}  // namespace zero3::test
