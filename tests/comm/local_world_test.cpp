#include <gtest/gtest.h>

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

}  // namespace
}  // namespace zero3::test
