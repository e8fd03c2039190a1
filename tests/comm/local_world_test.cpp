#include <gtest/gtest.h>

#include <malloc.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ZERO3_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ZERO3_SANITIZED
#endif
#endif
#ifdef ZERO3_SANITIZED
#include <sanitizer/allocator_interface.h>
#endif

#include <atomic>
#include <stdexcept>
#include <thread>

#include <zero3/error.h>

#include "comm/worlds.h"
#include "support/contains.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

using std::chrono::milliseconds;

/// On threads, between mapped files, and on the stepped executor with two seeds.
class LocalWorldFailure : public ::testing::TestWithParam<TestWorld> {
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
INSTANTIATE_TEST_SUITE_P(, LocalWorldFailure,
                         ::testing::Values(kThreads, stepped(1), stepped(2), kNode), world_name);

TEST_P(LocalWorldFailure, AnotherOperationIsNamedOnEveryRank) {
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

TEST_P(LocalWorldFailure, GroupsOfEqualSizeInSwappedOrderAreToldApart) {
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

TEST_P(LocalWorldFailure, AnotherSizeIsNamed) {
  const auto messages = errors(2, [](Rank& r) {
    const Buffer values = r.allocate(8 + r.rank);
    r.communicator->all_reduce(values.view(), "n", *r.stream);
    r.stream->synchronize();
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, {"rank 0", "(32 bytes)", "rank 1", "(36 bytes)"}));
  }
}

TEST_P(LocalWorldFailure, AnotherDTypeOfTheSameBytesIsNamed) {
  const auto messages = errors(2, [](Rank& r) {
    const Buffer values = r.allocate(8, r.rank == 0 ? DType::kI64 : DType::kF64);
    r.communicator->all_reduce(values.view(), "n", *r.stream);
    r.stream->synchronize();
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, {"64 bytes, int64", "64 bytes, fp64"}));
  }
}

TEST_P(LocalWorldFailure, AnotherReductionIsNamed) {
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

TEST_P(LocalWorldFailure, AnotherRootIsNamed) {
  const auto messages = errors(2, [](Rank& r) {
    const Buffer values = r.allocate(8);
    r.communicator->broadcast(values.view(), r.rank, "b", *r.stream);
    r.stream->synchronize();
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, {"root 0", "root 1"}));
  }
}

TEST_P(LocalWorldFailure, ASplitIsToldApartFromACollective) {
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

TEST_P(LocalWorldFailure, ARankThatEndsEarlyIsNamedAtOnce) {
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

TEST_P(LocalWorldFailure, WhatARankHadIssuedBeforeItEndedStillRuns) {
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

TEST_P(LocalWorldFailure, AnAbortReachesThoseWhoWait) {
  const auto messages = errors(3, [](Rank& r) {
    if (r.rank == 2) r.communicator->abort("the disk is full");
    r.communicator->barrier("e", *r.stream);
    r.stream->synchronize();
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, {"barrier of 'e'", "rank 2: the disk is full"}));
  }
}

TEST_P(LocalWorldFailure, AnAbortReachesEveryGroupSplitFromTheWorld) {
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

TEST_P(LocalWorldFailure, OperationsAfterAFailureFailToo) {
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

TEST_P(LocalWorldFailure, AStreamThatFailedReleasesThePeers) {
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

TEST_P(LocalWorldFailure, WhatOneRankThrowsReleasesTheOthersAndIsRethrown) {
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

TEST_P(LocalWorldFailure, ThrowingOnAllRanksAtOnePlaceLeavesTheGroupUsable) {
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

TEST(LocalWorld, NamesTheRanksThatAreAbsentAfterTheTimeout) {
  std::vector<std::string> messages(4);
  run_ranks(4,
            [&](Rank& r) {
              // Those who come late learn of it as well.
              if (r.rank == 1 || r.rank == 3) std::this_thread::sleep_for(milliseconds(300));
              const Buffer values = r.allocate(8);
              r.communicator->all_reduce(values.view(), "block.7", *r.stream);
              messages[static_cast<std::size_t>(r.rank)] =
                  message_of<CommError>([&] { r.stream->synchronize(); });
            },
            {.timeout = milliseconds(100)});
  for (const std::string& message : messages) {
    EXPECT_TRUE(contains(message, {"collective #1, all_reduce of 'block.7' (32 bytes)",
                                   "ranks 1, 3 absent after 100 ms"}));
  }
}

TEST(LocalWorld, RanksThatWaitForEachOtherForeverAreReportedAtOnceWhenStepped) {
  std::vector<std::string> messages(2);
  run_ranks(2,
            [&](Rank& r) {
              const auto twin = r.communicator->duplicate(*r.stream);
              Communicator& chosen = r.rank == 0 ? *r.communicator : *twin;
              chosen.barrier(r.rank == 0 ? "a" : "b", *r.stream);
              messages[static_cast<std::size_t>(r.rank)] =
                  message_of<Error>([&] { r.stream->synchronize(); });
            },
            {.seed = 1});
  const bool rank_0_noticed = messages[0].find("deadlock") != std::string::npos;
  EXPECT_TRUE(contains(messages[rank_0_noticed ? 0 : 1],
                       {"deadlock", "barrier of 'a', rank 1 absent",
                        "communicator 1 (ranks 0, 1), barrier of 'b', rank 0 absent"}));
}

TEST(LocalWorld, MemoryIsNotReadOnceAnErrorHasReturned) {
  // Buffers are freed at once by those who get the error; the address and thread sanitizers see a
  // peer that still reads.
  for (int round = 0; round < 20; ++round) {
    std::thread disturber;
    run_ranks(3, [&](Rank& r) {
      const std::int64_t size = 1 << 16;
      const auto shard = std::make_unique<std::vector<float>>(static_cast<std::size_t>(size), 1.0F);
      Buffer source = r.allocate(size), full = r.allocate(3 * size);
      copy_from_host(source.view(), shard->data(), *r.stream);
      if (r.rank == 0) {
        disturber = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(37 * round));
          r.communicator->abort("disturbed");
        });
      }
      for (int i = 0; i < 20; ++i) {
        r.communicator->all_gather(full.view(), source.view(), "w", *r.stream);
      }
      try {
        r.stream->synchronize();
      } catch (const CommError&) {
      }
      source.reset();
      full.reset();
      r.device->pool().trim();
      if (r.rank == 0) disturber.join();
    });
  }
}

TEST(LocalWorld, GivesEachRankOneCommunicator) {
  LocalWorld world(2);
  const auto first = world.communicator(0);
  EXPECT_TRUE(contains(message_of<UsageError>([&] { static_cast<void>(world.communicator(0)); }),
                       {"rank 0", "duplicate()"}));
  EXPECT_THROW(static_cast<void>(world.communicator(2)), UsageError);
  EXPECT_THROW(static_cast<void>(world.communicator(-1)), UsageError);
  EXPECT_EQ(world.communicator(1)->rank(), 1);
}

TEST(LocalWorld, RefusesAnEmptyWorldAndNoTimeout) {
  EXPECT_THROW(LocalWorld(0), UsageError);
  EXPECT_THROW(LocalWorld(2, milliseconds(0)), UsageError);
  EXPECT_NO_THROW(LocalWorld(2, milliseconds::max()));
}

TEST(LocalWorld, RunsAgainAfterAFailure) {
  LocalWorld world(2);
  EXPECT_THROW(world.run([](Communicator& c) {
    if (c.rank() == 0) throw std::out_of_range("once");
  }),
               std::out_of_range);
  std::atomic<int> ranks = 0;
  world.run([&](Communicator& c) { ranks += c.rank() + 1; });
  EXPECT_EQ(ranks, 3);
}

TEST(LocalWorld, RethrowsTheCauseAndNotWhatItCausedElsewhere) {
  // The duplicate dies, and releases rank 0 with an error, before rank 1's exception is caught.
  EXPECT_EQ(message_of<std::out_of_range>([] {
              run_ranks(2, [](Rank& r) {
                const auto other = r.device->make_stream({.name = "other"});
                std::unique_ptr<Communicator> twin = r.communicator->duplicate(*r.stream);
                struct Slow {
                  ~Slow() { std::this_thread::sleep_for(milliseconds(20)); }
                } slow;
                const std::unique_ptr<Communicator> dies_first = std::move(twin);
                if (r.rank == 1) throw std::out_of_range("layer 3");
                dies_first->barrier("e", *other);
                other->synchronize();
              });
            }),
            "layer 3");
}

/// Of this process's heap; a sanitizer has one of its own.
std::int64_t allocated_bytes() {
#ifdef ZERO3_SANITIZED
  return static_cast<std::int64_t>(__sanitizer_get_current_allocated_bytes());
#else
  return static_cast<std::int64_t>(mallinfo2().uordblks);
#endif
}

TEST(LocalWorld, AMillionCollectivesWouldNotGrowMemory) {
  std::vector<std::int64_t> growth(2);
  run_ranks(2, [&](Rank& r) {
    const Buffer shard = r.upload(std::vector<float>(4, 1.0F)), full = r.allocate(8);
    const auto rounds = [&](int count) {
      for (int i = 0; i < count; ++i) {
        r.communicator->all_gather(full.view(), shard.view(), "a label longer than a short string",
                                   *r.stream);
        if (i % 50 == 0) r.stream->synchronize();
      }
      r.communicator->barrier("counted", *r.stream);
      r.stream->synchronize();
    };
    rounds(500);
    const auto before = allocated_bytes();
    rounds(5000);
    growth[static_cast<std::size_t>(r.rank)] = allocated_bytes() - before;
  });
  for (const std::int64_t bytes : growth) EXPECT_LT(bytes, 64 * 1024);
}

}  // namespace
}  // namespace zero3::test
