#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "comm/worlds.h"
#include "support/contains.h"

namespace zero3::test {
namespace {

using namespace std::chrono_literals;

/// Runs the ranks over messages, `near` of each machine, and hands over what carries them.
void run_over_messages(int ranks, int near,
                       const std::function<void(Rank&, MessageDouble&)>& rank_main,
                       std::chrono::milliseconds timeout = 60s) {
  ProcessWorlds worlds(ranks, near, timeout);
  RanksOptions options{.timeout = timeout};
  options.world = [&](int) { return [&](int rank) { return worlds.end(rank); }; };
  run_ranks(
      ranks, [&](Rank& rank) { rank_main(rank, worlds.messages); }, options);
}

std::vector<float> pattern(int rank, std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>((i * 7 + rank * 13) % 1001) / 37.0F);
  }
  return values;
}

/// Everything once, with parts of `count` elements.
void one_of_each(Rank& r, std::int64_t count) {
  Communicator& c = *r.communicator;
  const std::int64_t n = r.world_size;
  const Buffer shard = r.upload(pattern(r.rank, count)), full = r.allocate(count * n);
  const Buffer half = r.allocate(count * n, DType::kBF16);
  const Buffer gradient = r.upload(pattern(r.rank, count * n)), wide = r.allocate(count * n);
  c.all_gather(full.view(), shard.view(), "w", *r.stream);
  c.all_gather(half.view(), shard.view(), "w", *r.stream);
  c.reduce_scatter(shard.view(), gradient.view(), {.wire = DType::kF32}, "g", *r.stream);
  c.reduce_scatter(shard.view(), gradient.view(), {.wire = DType::kBF16}, "g", *r.stream);
  c.all_reduce(shard.view(), "n", *r.stream);
  c.all_to_all(wide.view(), gradient.view(), "t", *r.stream);
  c.broadcast(shard.view(), 1, "b", *r.stream);
  c.barrier("e", *r.stream);
  r.stream->synchronize();
}

TEST(Messages, CarryTheBytesThatAreCounted) {
  for (const int ranks : {2, 3, 4}) {
    for (const std::int64_t count : {0, 1, 3, 1000}) {
      run_over_messages(ranks, 1, [&](Rank& r, MessageDouble& messages) {
        one_of_each(r, count);
        Bytes counted{0};
        for (const auto& entry : r.communicator->counters().by_op) counted += entry.bytes;
        EXPECT_EQ(messages.received(r.rank), counted.count()) << ranks << ' ' << count;
      });
    }
  }
}

TEST(Messages, OnlyFarRanksGetThem) {
  run_over_messages(3, 2, [&](Rank& r, MessageDouble& messages) {
    const Buffer shard = r.upload(pattern(r.rank, 100)), full = r.allocate(300);
    r.communicator->all_gather(full.view(), shard.view(), "w", *r.stream);
    r.stream->synchronize();
    EXPECT_EQ(messages.received(r.rank), r.rank == 2 ? 800 : 400);
  });
}

// More than one piece of the staging, and no whole number of them.
TEST(Messages, FoldLargeSumsPieceByPiece) {
  constexpr std::int64_t kCount = 1'000'003;
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    std::vector<float> in_place;
    const auto reduce = [&](Rank& r) {
      const Buffer gradient = r.upload(pattern(r.rank, 2 * kCount));
      const Buffer sum = r.upload(pattern(5, kCount));
      r.communicator->reduce_scatter(sum.view(), gradient.view(),
                                     {.wire = wire, .into = Into::kAccumulate}, "g", *r.stream);
      r.communicator->all_reduce(gradient.view(), "n", *r.stream);
      std::vector<float> result = r.download<float>(sum.view());
      const auto total = r.download<float>(gradient.view());
      result.insert(result.end(), total.begin(), total.end());
      return result;
    };
    run_ranks(2, [&](Rank& r) {
      const auto result = reduce(r);
      if (r.rank == 1) in_place = result;
    });
    run_over_messages(2, 1, [&](Rank& r, MessageDouble&) {
      const auto result = reduce(r);
      if (r.rank != 1) return;
      EXPECT_TRUE(result == in_place) << wire;
    });
  }
}

TEST(Messages, ACutLinkIsNamedWithWhoWasWaitedFor) {
  // The link is cut when all have left the barrier, and not while some of its letters are told.
  std::barrier all(3);
  const std::string error = message_of<CommError>([&] {
    run_over_messages(
        3, 2,
        [&](Rank& r, MessageDouble& messages) {
          one_of_each(r, 10);
          r.communicator->barrier("cut", *r.stream);
          r.stream->synchronize();
          all.arrive_and_wait();
          messages.cut();
          const Buffer shard = r.upload(pattern(r.rank, 100)), full = r.allocate(300);
          r.communicator->all_gather(full.view(), shard.view(), "w", *r.stream);
          r.stream->synchronize();
        },
        300ms);
  });
  EXPECT_TRUE(contains(error, {"all_gather of 'w' (1200 bytes): ", " absent after 300 ms"}));
}

TEST(Messages, ARankThatSendsNoneForLongShowsNoSignOfLife) {
  MessageDouble messages(2);
  std::vector<std::shared_ptr<process::ProcessWorld>> worlds;
  for (const int rank : {0, 1}) {
    worlds.push_back(std::make_shared<process::ProcessWorld>(std::make_unique<process::Board>(2),
                                                             rank, 60s, std::vector<bool>(2, true),
                                                             &messages.end(rank)));
    messages.connect(rank, worlds.back());
  }
  std::this_thread::sleep_for(process::ProcessWorld::kHeartbeat);
  EXPECT_EQ(worlds[0]->state_of(1), "");
  std::this_thread::sleep_for(2 * process::ProcessWorld::kHeartbeat);
  EXPECT_TRUE(contains(worlds[0]->state_of(1), {"no sign of life of rank 1 for "}));
  worlds[1]->beat();
  EXPECT_EQ(worlds[0]->state_of(1), "");
}

// The letters have come, the bytes do not.
TEST(Messages, ATransferThatStallsIsNamedToo) {
  const std::string error = message_of<CommError>([] {
    run_over_messages(
        2, 1,
        [](Rank& r, MessageDouble& messages) {
          messages.stall();
          const Buffer shard = r.upload(pattern(r.rank, 100)), full = r.allocate(200);
          r.communicator->all_gather(full.view(), shard.view(), "w", *r.stream);
          r.stream->synchronize();
        },
        300ms);
  });
  EXPECT_TRUE(contains(error, {"all_gather of 'w' (800 bytes): rank ", " not done after 300 ms"}));
}

// It is handed over on arrival, and would be started by the letter that comes too late.
TEST(Messages, ACallThatFailsLeavesNoTransferBehind) {
  std::size_t under_way = 1;
  const std::string error = message_of<CommError>([&] {
    run_over_messages(
        2, 1,
        [&](Rank& r, MessageDouble& messages) {
          if (r.rank == 1) {
            std::this_thread::sleep_for(500ms);
            return;
          }
          const Buffer shard = r.upload(pattern(r.rank, 100)), full = r.allocate(200);
          r.communicator->all_gather(full.view(), shard.view(), "w", *r.stream);
          try {
            r.stream->synchronize();
          } catch (...) {
            under_way = messages.under_way();
            throw;
          }
        },
        200ms);
  });
  EXPECT_TRUE(contains(error, {"all_gather of 'w' (800 bytes): ", " absent after 200 ms"}));
  EXPECT_EQ(under_way, 0U);
}

TEST(Messages, RanksThatDisagreeSendNoBytes) {
  std::array<std::int64_t, 2> received = {-1, -1};
  const std::string error = message_of<CommError>([&] {
    run_over_messages(2, 1, [&](Rank& r, MessageDouble& messages) {
      const std::int64_t count = 100 + r.rank;
      const Buffer shard = r.upload(pattern(r.rank, count)), full = r.allocate(2 * count);
      r.communicator->all_gather(full.view(), shard.view(), "w", *r.stream);
      try {
        r.stream->synchronize();
      } catch (...) {
        received[static_cast<std::size_t>(r.rank)] = messages.received(r.rank);
        throw;
      }
    });
  });
  EXPECT_TRUE(contains(error, {"all_gather of 'w' (800 bytes)", "(808 bytes)"}));
  EXPECT_EQ(received[0], 0);
  EXPECT_EQ(received[1], 0);
}

TEST(Messages, AFailureReachesFarRanksInItsOwnWords) {
  std::vector<std::string> errors(3);
  try {
    run_over_messages(3, 1, [&](Rank& r, MessageDouble&) {
      r.communicator->barrier("both", *r.stream);
      r.stream->synchronize();
      if (r.rank == 1) r.communicator->abort("no backward of layer 3");
      errors[static_cast<std::size_t>(r.rank)] = message_of<CommError>([&] {
        r.communicator->barrier("after", *r.stream);
        r.stream->synchronize();
      });
    });
  } catch (const Error&) {
    // Of no interest: the world that runs the ranks has nothing to say.
  }
  for (const std::string& error : errors) {
    EXPECT_TRUE(contains(error, {"barrier of 'after'", "rank 1: no backward of layer 3"}));
  }
}

}  // namespace
}  // namespace zero3::test
