#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <type_traits>

#include <zero3/error.h>
#include <zero3/philox.h>

#include "comm/worlds.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

constexpr int kWorldSizes[] = {1, 2, 3, 4, 5, 7};
constexpr std::int64_t kSizes[] = {0, 1, 1023, 1024, 1025};

/// On threads, between mapped files, and on the stepped executor with a few seeds.
class LocalCommunicator : public ::testing::TestWithParam<TestWorld> {
 protected:
  /// The body for every world size and every size of one rank's part.
  void for_all_sizes(const std::function<void(Rank&, std::int64_t size)>& body,
                     DeviceKind kind = DeviceKind::kCpu) {
    for (const int world_size : kWorldSizes) {
      SCOPED_TRACE(concat("world size ", world_size));
      run_ranks(
          world_size,
          [&](Rank& rank) {
            for (const std::int64_t size : kSizes) body(rank, size);
          },
          options_of(GetParam(), kind));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(, LocalCommunicator,
                         ::testing::Values(kThreads, stepped(1), stepped(2), stepped(3), stepped(4),
                                           kProcesses, kMessages, kPairs),
                         world_name);

/// In (-1, 1), different for every rank and index.
float value(int rank, std::int64_t index) {
  const auto word = philox(
      {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(rank), 0, 0}, {1, 2})[0];
  return 2.0F * uniform_float(word) - 1.0F;
}

template <class T>
T value_as(int rank, std::int64_t index) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::int64_t>(value(rank, index) * 100.0F));
  } else {
    return static_cast<T>(value(rank, index));
  }
}

template <class T = float>
std::vector<T> values(int rank, std::int64_t size) {
  std::vector<T> result;
  for (std::int64_t i = 0; i < size; ++i) result.push_back(value_as<T>(rank, i));
  return result;
}

/// The shards of all ranks in order.
template <class T = float>
std::vector<T> all_values(int world_size, std::int64_t size) {
  std::vector<T> result;
  for (int rank = 0; rank < world_size; ++rank) {
    const std::vector<T> part = values<T>(rank, size);
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

template <class Wire>
float rounded(float x) {
  return static_cast<float>(Wire(x));
}

/// [start +] what rank 0, 1, … hold at `index`, one addition after another.
template <class Wire>
float left_fold(std::optional<float> start, int world_size, std::int64_t index) {
  float sum = start ? *start + rounded<Wire>(value(0, index)) : rounded<Wire>(value(0, index));
  for (int rank = 1; rank < world_size; ++rank) sum += rounded<Wire>(value(rank, index));
  return sum;
}

TEST_P(LocalCommunicator, AllGatherJoinsTheShardsInRankOrder) {
  for_all_sizes([](Rank& r, std::int64_t size) {
    const Buffer shard = r.upload(values(r.rank, size));
    const Buffer full = r.allocate(size * r.world_size);
    r.communicator->all_gather(full.view(), shard.view(), "w", *r.stream);
    EXPECT_EQ(r.download<float>(full.view()), all_values(r.world_size, size));
  });
}

TEST_P(LocalCommunicator, AllGatherTakesAShardThatIsItsPartOfTheFullView) {
  for_all_sizes([](Rank& r, std::int64_t size) {
    const Buffer full = r.allocate(size * r.world_size);
    const TensorView shard = full.view().slice(size * r.rank, size);
    const std::vector<float> own = values(r.rank, size);
    copy_from_host(shard, own.data(), *r.stream);
    r.communicator->all_gather(full.view(), shard, "w", *r.stream);
    EXPECT_EQ(r.download<float>(full.view()), all_values(r.world_size, size));
  });
}

template <class Half>
void gathers_rounded(Rank& r, std::int64_t size) {
  const Buffer shard = r.upload(values(r.rank, size));
  const Buffer full = r.allocate(size * r.world_size, kDTypeOf<Half>);
  r.communicator->all_gather(full.view(), shard.view(), "w", *r.stream);
  const std::vector<Half> got = r.download<Half>(full.view());
  const std::vector<float> source = all_values(r.world_size, size);
  ASSERT_EQ(got.size(), source.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i].bits, Half(source[i]).bits) << i;
}

TEST_P(LocalCommunicator, AllGatherCastsToBf16) {
  for_all_sizes(gathers_rounded<BFloat16>);
}
TEST_P(LocalCommunicator, AllGatherCastsToFp16) {
  for_all_sizes(gathers_rounded<Float16>);
}

TEST_P(LocalCommunicator, AllGatherWorksInSimulatedDeviceMemory) {
  for_all_sizes(
      [](Rank& r, std::int64_t size) {
        const Buffer shard = r.upload(values(r.rank, size));
        const Buffer full = r.allocate(size * r.world_size);
        r.communicator->all_gather(full.view(), shard.view(), "w", *r.stream);
        EXPECT_EQ(r.download<float>(full.view()), all_values(r.world_size, size));
      },
      DeviceKind::kCpuSim);
}

/// Of the whole world, so that parts of different ranks differ.
std::vector<float> gradients(int rank, int world_size, std::int64_t size) {
  return values(rank, size * world_size);
}

template <class Wire>
void folds(Rank& r, std::int64_t size, Into into) {
  const std::vector<float> start = values(100 + r.rank, size);
  const Buffer accumulator = r.upload(start);
  const Buffer full = r.upload(gradients(r.rank, r.world_size, size));
  r.communicator->reduce_scatter(accumulator.view(), full.view(),
                                 {.wire = kDTypeOf<Wire>, .into = into}, "g", *r.stream);
  const std::vector<float> got = r.download<float>(accumulator.view());
  for (std::int64_t i = 0; i < size; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const auto from = into == Into::kAccumulate ? std::optional(start[index]) : std::nullopt;
    ASSERT_EQ(got[index], left_fold<Wire>(from, r.world_size, size * r.rank + i)) << i;
  }
  ASSERT_EQ(r.download<float>(full.view()), gradients(r.rank, r.world_size, size));
}

TEST_P(LocalCommunicator, ReduceScatterFoldsInRankOrder) {
  for_all_sizes([](Rank& r, std::int64_t size) { folds<float>(r, size, Into::kReplace); });
}

TEST_P(LocalCommunicator, ReduceScatterFoldsIntoTheAccumulator) {
  for_all_sizes([](Rank& r, std::int64_t size) { folds<float>(r, size, Into::kAccumulate); });
}

TEST_P(LocalCommunicator, ReduceScatterRoundsEachContributionToBf16) {
  for_all_sizes([](Rank& r, std::int64_t size) {
    folds<BFloat16>(r, size, Into::kReplace);
    folds<BFloat16>(r, size, Into::kAccumulate);
  });
}

TEST_P(LocalCommunicator, ReduceScatterRoundsEachContributionToFp16) {
  for_all_sizes([](Rank& r, std::int64_t size) {
    folds<Float16>(r, size, Into::kReplace);
    folds<Float16>(r, size, Into::kAccumulate);
  });
}

TEST_P(LocalCommunicator, ReduceScatterWorksInSimulatedDeviceMemory) {
  for_all_sizes([](Rank& r, std::int64_t size) { folds<float>(r, size, Into::kAccumulate); },
                DeviceKind::kCpuSim);
}

template <class T>
void sums(Rank& r, std::int64_t size) {
  const Buffer buffer = r.upload(values<T>(r.rank, size));
  r.communicator->all_reduce(buffer.view(), "norm", *r.stream);
  const std::vector<T> got = r.download<T>(buffer.view());
  for (std::int64_t i = 0; i < size; ++i) {
    T want = value_as<T>(0, i);
    for (int rank = 1; rank < r.world_size; ++rank) want += value_as<T>(rank, i);
    ASSERT_EQ(got[static_cast<std::size_t>(i)], want) << i;
  }
}

TEST_P(LocalCommunicator, AllReduceSumsFp32InRankOrder) {
  for_all_sizes(sums<float>);
}
TEST_P(LocalCommunicator, AllReduceSumsFp64InRankOrder) {
  for_all_sizes(sums<double>);
}
TEST_P(LocalCommunicator, AllReduceSumsInt64) {
  for_all_sizes(sums<std::int64_t>);
}
TEST_P(LocalCommunicator, AllReduceSumsUint64) {
  for_all_sizes(sums<std::uint64_t>);
}

TEST_P(LocalCommunicator, AllToAllTransposesTheParts) {
  for_all_sizes([](Rank& r, std::int64_t size) {
    const Buffer in = r.upload(values(r.rank, size * r.world_size));
    const Buffer out = r.allocate(size * r.world_size);
    r.communicator->all_to_all(out.view(), in.view(), "tokens", *r.stream);
    const std::vector<float> got = r.download<float>(out.view());
    for (int from = 0; from < r.world_size; ++from) {
      for (std::int64_t i = 0; i < size; ++i) {
        ASSERT_EQ(got[static_cast<std::size_t>(size * from + i)], value(from, size * r.rank + i));
      }
    }
  });
}

TEST_P(LocalCommunicator, BroadcastGivesEveryRankTheRootsValues) {
  for_all_sizes([](Rank& r, std::int64_t size) {
    for (int root = 0; root < r.world_size; ++root) {
      const Buffer buffer = r.upload(values<BFloat16>(r.rank, size));
      r.communicator->broadcast(buffer.view(), root, "weights", *r.stream);
      ASSERT_EQ(r.download<BFloat16>(buffer.view()), values<BFloat16>(root, size));
    }
  });
}

TEST_P(LocalCommunicator, BarrierPassesOnlyOnceEveryRankHasArrived) {
  for (const int world_size : kWorldSizes) {
    std::atomic<int> arrived = 0;
    run_ranks(
        world_size,
        [&](Rank& r) {
          r.stream->call("arrive", [&] { ++arrived; });
          r.communicator->barrier("here", *r.stream);
          int seen = 0;
          r.stream->call("look", [&] { seen = arrived; });
          r.stream->synchronize();
          EXPECT_EQ(seen, world_size);
        },
        options_of(GetParam()));
  }
}

TEST_P(LocalCommunicator, EmptyViewsWithoutADeviceAreOrdinary) {
  run_ranks(
      3,
      [](Rank& r) {
        r.communicator->all_gather({}, {}, "none", *r.stream);
        r.communicator->reduce_scatter({}, {}, {}, "none", *r.stream);
        r.communicator->all_reduce({}, "none", *r.stream);
        r.communicator->broadcast({}, 1, "none", *r.stream);
        EXPECT_NO_THROW(r.stream->synchronize());
      },
      options_of(GetParam()));
}

TEST_P(LocalCommunicator, ASourceMayBeOverwrittenOnceTheStreamHasPassed) {
  run_ranks(
      4,
      [](Rank& r) {
        const Buffer shard = r.allocate(1000), full = r.allocate(4000);
        for (int round = 0; round < 20; ++round) {
          const std::vector<float> own(1000, static_cast<float>(10 * round + r.rank));
          copy_from_host(shard.view(), own.data(), *r.stream);
          r.communicator->all_gather(full.view(), shard.view(), "w", *r.stream);
          fill_zero(shard.view(), *r.stream);
          const std::vector<float> got = r.download<float>(full.view());
          for (std::size_t i = 0; i < got.size(); ++i) {
            ASSERT_EQ(got[i], static_cast<float>(10 * round) + static_cast<float>(i / 1000));
          }
        }
      },
      options_of(GetParam()));
}

TEST_P(LocalCommunicator, OneOrderHoldsAcrossTwoStreams) {
  run_ranks(
      3,
      [](Rank& r) {
        const auto other = r.device->make_stream({.name = "other"});
        const Buffer a = r.upload(std::vector<double>(100, 1.0));
        const Buffer b = r.upload(std::vector<double>(200, 2.0));
        // Held back on one rank, the first operation must still be the first.
        if (r.rank == 1) {
          r.stream->call("hold", [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
        }
        r.communicator->all_reduce(a.view(), "a", *r.stream);
        r.communicator->all_reduce(b.view(), "b", *other);
        r.communicator->all_reduce(a.view(), "a again", *r.stream);
        other->synchronize();
        EXPECT_EQ(r.download<double>(a.view()), std::vector<double>(100, 9.0));
        EXPECT_EQ(r.download<double>(b.view()), std::vector<double>(200, 6.0));
      },
      options_of(GetParam()));
}

TEST_P(LocalCommunicator, CountersFollowTheNetwork) {
  for (const int world_size : {1, 2, 5}) {
    run_ranks(
        world_size,
        [](Rank& r) {
          Communicator& c = *r.communicator;
          const std::int64_t n = r.world_size;
          const Buffer shard = r.upload(values(r.rank, 10)), full = r.allocate(10 * n);
          const Buffer half = r.allocate(10 * n, DType::kBF16);
          const Buffer gradient = r.upload(values(r.rank, 10 * n)), wide = r.allocate(10 * n);
          c.all_gather(full.view(), shard.view(), "w", *r.stream);
          c.all_gather(half.view(), shard.view(), "w", *r.stream);
          c.reduce_scatter(shard.view(), gradient.view(), {.wire = DType::kF32}, "g", *r.stream);
          c.reduce_scatter(shard.view(), gradient.view(), {.wire = DType::kBF16}, "g", *r.stream);
          c.all_reduce(shard.view(), "n", *r.stream);
          c.all_to_all(wide.view(), gradient.view(), "t", *r.stream);
          c.broadcast(shard.view(), 0, "b", *r.stream);
          c.barrier("e", *r.stream);
          r.stream->synchronize();

          const CommCounters counters = c.counters();
          const auto expect = [&](CollectiveOp op, std::int64_t count, std::int64_t bytes) {
            EXPECT_EQ(counters[op].count, count) << name_of(op);
            EXPECT_EQ(counters[op].bytes, Bytes(bytes)) << name_of(op);
          };
          expect(CollectiveOp::kAllGather, 2, (n - 1) * (40 + 20));
          expect(CollectiveOp::kReduceScatter, 2, (n - 1) * (40 + 20));
          // What it sums of the ten comes n - 1 times, what others have summed once.
          const std::int64_t most = div_ceil(10, n);
          const std::int64_t own = std::min(most, 10 - std::min<std::int64_t>(10, most * r.rank));
          expect(CollectiveOp::kAllReduce, 1, 4 * (own * (n - 1) + 10 - own));
          expect(CollectiveOp::kAllToAll, 1, (n - 1) * 40);
          expect(CollectiveOp::kBroadcast, 1, r.rank == 0 ? 0 : 40);
          expect(CollectiveOp::kBarrier, 1, 0);
        },
        options_of(GetParam()));
  }
}

TEST_P(LocalCommunicator, SumsOfRankPlusOneAreExact) {
  for (int world_size = 1; world_size <= 5; ++world_size) {
    run_ranks(
        world_size,
        [](Rank& r) {
          const std::int64_t size = 129;
          const Buffer full = r.upload(std::vector<float>(
              static_cast<std::size_t>(size * r.world_size), static_cast<float>(r.rank + 1)));
          const Buffer shard = r.allocate(size);
          const float sum = static_cast<float>(r.world_size * (r.world_size + 1) / 2);
          for (const DType wire : {DType::kF32, DType::kBF16, DType::kF16}) {
            r.communicator->reduce_scatter(shard.view(), full.view(), {.wire = wire}, "g",
                                           *r.stream);
            EXPECT_EQ(r.download<float>(shard.view()), std::vector<float>(129, sum)) << wire;
          }
        },
        options_of(GetParam()));
  }
}

}  // namespace
}  // namespace zero3::test
