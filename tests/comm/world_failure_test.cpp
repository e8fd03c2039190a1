#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <zero3/error.h>
#include "comm/worlds.h"
#include "support/contains.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

using std::chrono::milliseconds;

/// On threads, between mapped files, and on the stepped executor with two seeds.
class WorldFailure : public ::testing::TestWithParam<TestWorld> {
 protected:
  /// What each rank's `rank_main` throws as CommError.
  std::vector<std::string> errors(int world_size, const std::function<void(Rank&)>& rank_main) {
    std::vector<std::string> messages(static_cast<std::size_t>(world_size));
    run_ranks(
        world_size,
        [&](Rank& r) {
          messages[static_cast<std::size_t>(r.rank)] = message_of<CommError>([&] { rank_main(r); });
        },
        options_of(GetParam()));
    return messages;
  }
};
INSTANTIATE_TEST_SUITE_P(, WorldFailure,
                         ::testing::Values(kThreads, stepped(1), stepped(2), kProcesses, kMessages,
                                           kPairs),
                         world_name);

TEST_P(WorldFailure, AnotherOperationIsNamedOnEveryRank) {
  const auto messages = errors(3, [](Rank& r) {
    const Buffer shard = r.allocate(512), full = r.allocate(3 * 512);
    for (int i = 0; i < 5; ++i) r.communicator->barrier("step", *r.stream);
    if (r.rank == 1) {
      r.communicator->reduce_scatter(shard.view(), full.view(), {}, "block.3", *r.stream);
    } else {
      r.communicator->all_gather(full.view(), shard.view(), "block.2", *r.stream);
    }
    r.stream->synchronize();
  });
  for (const std::string& message : messages) {
    EXPECT_EQ(message, messages[0]);
    EXPECT_TRUE(
        contains(message, {"collective #6: rank", "reduce_scatter of 'block.3' (6144 bytes)",
                           "all_gather of 'block.2' (6144 bytes)", "rank 1 ",
                           "every rank must issue the same collectives in the same order"}));
  }
}

TEST_P(WorldFailure, GroupsOfEqualSizeInSwappedOrderAreToldApart) {
  const auto messages = errors(2, [](Rank& r) {
    const Buffer shard = r.allocate(8), full = r.allocate(16);
    for (const char* label : r.rank == 1 ? std::array{"B", "A"} : std::array{"A", "B"}) {
      r.communicator->all_gather(full.view(), shard.view(), label, *r.stream);
    }
    r.stream->synchronize();
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, {"collective #1", "all_gather of 'A'", "all_gather of 'B'"}));
  }
}

TEST_P(WorldFailure, AnotherSizeIsNamed) {
  const auto messages = errors(2, [](Rank& r) {
    const Buffer values = r.allocate(8 + r.rank);
    r.communicator->all_reduce(values.view(), "n", *r.stream);
    r.stream->synchronize();
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, {"rank 0", "(32 bytes)", "rank 1", "(36 bytes)"}));
  }
}

TEST_P(WorldFailure, AnotherDTypeOfTheSameBytesIsNamed) {
  const auto messages = errors(2, [](Rank& r) {
    const Buffer values = r.allocate(8, r.rank == 0 ? DType::kI64 : DType::kF64);
    r.communicator->all_reduce(values.view(), "n", *r.stream);
    r.stream->synchronize();
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, {"64 bytes, int64", "64 bytes, fp64"}));
  }
}

TEST_P(WorldFailure, AnotherReductionIsNamed) {
  const auto messages = errors(2, [](Rank& r) {
    const Buffer shard = r.allocate(8), full = r.allocate(16);
    r.communicator->reduce_scatter(shard.view(), full.view(),
                                   {.into = r.rank == 0 ? Into::kReplace : Into::kAccumulate}, "g",
                                   *r.stream);
    r.stream->synchronize();
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, {"replacing", "accumulating"}));
  }
}

TEST_P(WorldFailure, AnotherRootIsNamed) {
  const auto messages = errors(2, [](Rank& r) {
    const Buffer values = r.allocate(8);
    r.communicator->broadcast(values.view(), r.rank, "b", *r.stream);
    r.stream->synchronize();
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, {"root 0", "root 1"}));
  }
}

TEST_P(WorldFailure, ASplitIsToldApartFromACollective) {
  const auto messages = errors(2, [](Rank& r) {
    if (r.rank == 0) {
      static_cast<void>(r.communicator->duplicate(*r.stream));
    } else {
      r.communicator->barrier("e", *r.stream);
      r.stream->synchronize();
    }
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, {"split", "barrier of 'e'"}));
  }
}

TEST_P(WorldFailure, ARankThatEndsEarlyIsNamedAtOnce) {
  const auto messages = errors(3, [](Rank& r) {
    const Buffer shard = r.allocate(8), full = r.allocate(24);
    for (int batch = 0; batch < (r.rank == 1 ? 5 : 7); ++batch) {
      r.communicator->all_gather(full.view(), shard.view(), "w", *r.stream);
    }
    r.stream->synchronize();
    // Ranks that have what they need may leave while others are still reading the last message.
    r.communicator.reset();
  });
  EXPECT_EQ(messages[1], "nothing was thrown");
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(
        contains(messages[static_cast<std::size_t>(rank)],
                 {"rank 1 has ended after 5 collectives", "collective #6", "all_gather of 'w'"}));
  }
}

TEST_P(WorldFailure, WhatARankHadIssuedBeforeItEndedStillRuns) {
  run_ranks(
      2,
      [](Rank& r) {
        const Buffer values = r.upload(std::vector<float>(4, 1.0F));
        r.communicator->all_reduce(values.view(), "n", *r.stream);
        if (r.rank == 1) r.communicator.reset();
        EXPECT_EQ(r.download<float>(values.view()), std::vector<float>(4, 2.0F));
      },
      options_of(GetParam()));
}

TEST_P(WorldFailure, AnAbortReachesThoseWhoWait) {
  const auto messages = errors(3, [](Rank& r) {
    if (r.rank == 2) r.communicator->abort("the disk is full");
    r.communicator->barrier("e", *r.stream);
    r.stream->synchronize();
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, {"barrier of 'e'", "rank 2: the disk is full"}));
  }
}

TEST_P(WorldFailure, AnAbortReachesEveryGroupSplitFromTheWorld) {
  const auto messages = errors(4, [](Rank& r) {
    const auto pair = r.communicator->split(r.rank / 2, 0, *r.stream);
    if (r.rank == 3) {
      pair->abort("the disk is full");
    } else {
      pair->barrier("e", *r.stream);
    }
    // One rank of each pair is alone in this one.
    if (r.rank % 2 == 0) pair->barrier("f", *r.stream);
    r.stream->synchronize();
    r.communicator->barrier("g", *r.stream);
    r.stream->synchronize();
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, {"rank 3: the disk is full"}));
  }
}

TEST_P(WorldFailure, OperationsAfterAFailureFailToo) {
  run_ranks(
      2,
      [](Rank& r) {
        if (r.rank == 0) r.communicator->abort("first");
        for (int i = 0; i < 3; ++i) {
          r.communicator->barrier("e", *r.stream);
          EXPECT_TRUE(contains(message_of<CommError>([&] { r.stream->synchronize(); }),
                               {concat("collective #", i + 1), "first"}));
        }
        if (r.rank == 1) r.communicator->abort("second, and too late");
      },
      options_of(GetParam()));
}

TEST_P(WorldFailure, AStreamThatFailedReleasesThePeers) {
  std::vector<std::string> messages(3);
  run_ranks(
      3,
      [&](Rank& r) {
        if (r.rank == 1) r.stream->call("kernel", [] { throw std::out_of_range("token 99"); });
        r.communicator->barrier("e", *r.stream);
        try {
          r.stream->synchronize();
        } catch (const std::out_of_range& error) {
          messages[1] = concat("own: ", error.what());
        } catch (const CommError& error) {
          messages[static_cast<std::size_t>(r.rank)] = error.what();
        }
      },
      options_of(GetParam()));
  EXPECT_EQ(messages[1], "own: token 99");
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_TRUE(contains(messages[rank], {"barrier of 'e'", "rank 1", "token 99"}));
  }
}

TEST_P(WorldFailure, WhatOneRankThrowsReleasesTheOthersAndIsRethrown) {
  std::vector<std::string> messages(3);
  const auto run = [&] {
    run_ranks(
        3,
        [&](Rank& r) {
          r.communicator->barrier("forward", *r.stream);
          if (r.rank == 1) throw std::out_of_range("layer 3");
          r.communicator->barrier("backward", *r.stream);
          messages[static_cast<std::size_t>(r.rank)] =
              message_of<CommError>([&] { r.stream->synchronize(); });
          throw CommError("what the others make of it");
        },
        options_of(GetParam()));
  };
  EXPECT_EQ(message_of<std::out_of_range>(run), "layer 3");
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_TRUE(contains(messages[rank], {"barrier of '", "rank 1: layer 3"}));
  }
}

TEST_P(WorldFailure, ThrowingOnAllRanksAtOnePlaceLeavesTheGroupUsable) {
  run_ranks(
      3,
      [](Rank& r) {
        const Buffer values = r.upload(std::vector<float>(4, 1.0F));
        try {
          r.communicator->barrier("forward", *r.stream);
          throw std::out_of_range("layer 3");
        } catch (const std::out_of_range&) {
        }
        r.communicator->all_reduce(values.view(), "next step", *r.stream);
        EXPECT_EQ(r.download<float>(values.view()), std::vector<float>(4, 3.0F));
      },
      options_of(GetParam()));
}

}  // namespace
}  // namespace zero3::test
