#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include <zero3/buffer.h>
#include <zero3/memory_resources.h>
#include "support/contains.h"
#include "support/dropping_device.h"
#include "support/executors.h"
#include "support/test_gate.h"
#include "support/thrown.h"

namespace zero3 {
namespace {

using test::contains;
using test::DroppingDevice;
using test::Mode;
using test::OwnDevice;
using test::thrown;
using test::WaitCounter;

constexpr MemoryTag kTag = MemoryTag::kGathered;

TEST(MemoryTag, HasAName) {
  EXPECT_EQ(name_of(MemoryTag::kShards), "shards");
  EXPECT_EQ(name_of(MemoryTag::kWorkspace), "workspace");
}

TEST(MemoryByTag, SumsItsTags) {
  MemoryByTag bytes;
  bytes[MemoryTag::kShards] = Bytes(3);
  bytes[MemoryTag::kWorkspace] = Bytes(4);
  EXPECT_EQ(bytes.total(), Bytes(7));
}

/// The memory of a device on the threaded executor; blocks in units of 64 bytes.
class MemoryTest : public ::testing::Test {
 protected:
  Buffer take(std::int64_t bytes, MemoryTag tag = kTag) {
    return Buffer(Elements(bytes), DType::kU8, tag, *a_);
  }
  [[nodiscard]] StatsResource& stats() const { return own_.device->stats(); }
  [[nodiscard]] PoolResource& pool() const { return own_.device->pool(); }
  [[nodiscard]] LimitResource& limit() const { return own_.device->limit(); }

  WaitCounter waits_;
  OwnDevice own_{Mode{}};
  std::unique_ptr<Stream> a_ = std::make_unique<test::ObservedStream>(own_.stream("a"), waits_);
  std::unique_ptr<Stream> b_ = std::make_unique<test::ObservedStream>(own_.stream("b"), waits_);
};
using Stats = MemoryTest;
using Limit = MemoryTest;
using Pool = MemoryTest;

TEST_F(Stats, CountByTagWhatIsInUse) {
  const Buffer shard = take(128, MemoryTag::kShards);
  const Buffer gathered = take(64, MemoryTag::kGathered);
  EXPECT_EQ(stats().in_use()[MemoryTag::kShards], Bytes(128));
  EXPECT_EQ(stats().in_use()[MemoryTag::kGathered], Bytes(64));
  EXPECT_EQ(stats().in_use().total(), Bytes(192));
}

TEST_F(Stats, ChargeWholeAlignmentUnits) {
  const Buffer one = take(1);
  const Buffer more = take(65);
  EXPECT_EQ(stats().in_use()[kTag], Bytes(64 + 128));
}

TEST_F(Stats, PeakFollowsTheHostAndNotTheDevice) {
  const auto gate = std::make_shared<test::TestGate>();
  internal::enqueue(*a_, {.name = "held", .run = nullptr, .gate = gate});
  for (int i = 0; i < 5; ++i) take(64).reset();  // none of these points has passed
  EXPECT_EQ(stats().peak()[kTag], Bytes(64));
  gate->let_pass();
}

TEST_F(Stats, PeakIsKeptPerTagAndInTotal) {
  take(128, MemoryTag::kShards).reset();
  take(64, MemoryTag::kGrads).reset();
  EXPECT_EQ(stats().peak()[MemoryTag::kShards], Bytes(128));
  EXPECT_EQ(stats().peak()[MemoryTag::kGrads], Bytes(64));
  EXPECT_EQ(stats().peak_total(), Bytes(128));
}

TEST_F(Stats, PeakStartsAgainFromWhatIsInUse) {
  take(1024).reset();
  const Buffer kept = take(64);
  stats().reset_peak();
  EXPECT_EQ(stats().peak()[kTag], Bytes(64));
  EXPECT_EQ(stats().peak_total(), Bytes(64));
}

TEST_F(Stats, CountAllocations) {
  take(64).reset();
  take(64).reset();
  EXPECT_EQ(stats().allocations(), 2);
}

TEST_F(Limit, AdmitsExactlyItself) {
  limit().set_limit(Bytes(128));
  const Buffer first = take(64);
  EXPECT_NO_THROW(take(64));
  EXPECT_THROW(take(65), OutOfMemoryError);
}

TEST_F(Limit, ErrorNamesTagSizesAndContents) {
  limit().set_limit(Bytes(4096));
  const Buffer shards = take(2048, MemoryTag::kShards);
  const Buffer grads = take(1024, MemoryTag::kGrads);
  EXPECT_TRUE(contains(thrown<OutOfMemoryError>([&] { take(1088, MemoryTag::kActivations); }),
                       {"1.1 KiB for activations", "3.0 KiB of 4.0 KiB in use",
                        "shards 2.0 KiB, grads 1.0 KiB", "raise the limit"}));
}

TEST_F(Limit, RefusalChangesNothing) {
  limit().set_limit(Bytes(64));
  EXPECT_THROW(take(128), OutOfMemoryError);
  EXPECT_EQ(stats().in_use().total(), Bytes(0));
  EXPECT_NO_THROW(take(64));
}

TEST_F(Limit, BelowWhatIsInUseRefusesMore) {
  const Buffer first = take(128);
  limit().set_limit(Bytes(64));
  EXPECT_THROW(take(64), OutOfMemoryError);
  EXPECT_EQ(limit().limit(), Bytes(64));
}

TEST_F(Limit, ForgetsWhatTheSourceRefused) {
  const OwnDevice sim(Mode{}, {.kind = DeviceKind::kCpuSim,
                               .threads = 1,
                               .memory_limit = Bytes(1 << 20),
                               .capacity = Bytes(4096)});
  const auto stream = sim.stream("stream");
  const auto take_all = [&] { return Buffer(Elements(8192), DType::kU8, kTag, *stream); };
  for (int i = 0; i < 200; ++i) EXPECT_THROW(take_all(), OutOfMemoryError);
  EXPECT_NO_THROW(Buffer(Elements(4096), DType::kU8, kTag, *stream));
}

TEST_F(Pool, ReusesOnTheSameStreamWithoutAWait) {
  void* first = nullptr;
  {
    const Buffer buffer = take(64);
    first = buffer.view().data();
  }
  EXPECT_EQ(take(64).view().data(), first);
  EXPECT_EQ(waits_.count(), 0);
}

TEST_F(Pool, ReusesOnAnotherStreamWithAWait) {
  void* first = nullptr;
  {
    const Buffer buffer = take(64);
    first = buffer.view().data();
  }
  const Buffer other(Elements(64), DType::kU8, kTag, *b_);
  EXPECT_EQ(other.view().data(), first);
  EXPECT_EQ(waits_.count(), 1);
}

TEST_F(Pool, PrefersABlockOfTheSameStream) {
  Buffer of_b(Elements(64), DType::kU8, kTag, *b_);
  Buffer of_a = take(64);
  void* own = of_a.view().data();
  of_b.reset();
  of_a.reset();
  EXPECT_EQ(take(64).view().data(), own);
  EXPECT_EQ(waits_.count(), 0);
}

TEST_F(Pool, ReusesBlocksOfTheExactSizeOnly) {
  take(128).reset();
  take(64).reset();
  EXPECT_EQ(pool().blocks_taken(), 2);
  EXPECT_EQ(pool().reserved(), Bytes(192));
}

TEST_F(Pool, TakesNothingInTheSteadyState) {
  const auto step = [&] {
    std::vector<Buffer> kept;
    for (const std::int64_t size : {64, 1000, 64, 4096}) kept.push_back(take(size));
    kept.erase(kept.begin());
    kept.emplace_back(Elements(64), DType::kU8, kTag, *b_);
  };
  step();
  const std::int64_t after_first = pool().blocks_taken();
  for (int i = 0; i < 20; ++i) step();
  EXPECT_EQ(pool().blocks_taken(), after_first);
}

TEST_F(Pool, TakesNothingForZeroBytes) {
  const Buffer nothing = take(0);
  EXPECT_EQ(pool().blocks_taken(), 0);
  EXPECT_EQ(nothing.view().data(), nullptr);
}

TEST_F(Pool, TrimGivesKeptBlocksBack) {
  const Buffer used = take(64);
  take(128).reset();
  pool().trim();
  EXPECT_EQ(pool().reserved(), Bytes(64));
}

TEST_F(Pool, TrimWaitsForTheLastUse) {
  bool used = false;
  Buffer buffer = take(64);
  a_->call("use", [&used] { used = true; });
  buffer.reset();
  pool().trim();
  EXPECT_TRUE(used);
}

TEST_F(Pool, ReuseTakesOverNoError) {
  Buffer buffer = take(64);
  a_->call("fail", [] { throw std::runtime_error("of a"); });
  buffer.reset();
  const Buffer other(Elements(64), DType::kU8, kTag, *b_);
  EXPECT_EQ(waits_.count(), 1);
  EXPECT_NO_THROW(b_->synchronize());
  EXPECT_THROW(a_->synchronize(), std::runtime_error);
}

TEST(PoolOfASimulatedDevice, TrimsWhenTheSourceIsExhausted) {
  const OwnDevice sim(Mode{}, {.kind = DeviceKind::kCpuSim, .threads = 1, .capacity = Bytes(4096)});
  const auto stream = sim.stream("stream");
  Buffer(Elements(2048), DType::kU8, kTag, *stream).reset();
  EXPECT_NO_THROW(Buffer(Elements(4096), DType::kU8, kTag, *stream));
  EXPECT_EQ(sim.device->pool().reserved(), Bytes(4096));
}

TEST(PoolOfASimulatedDevice, NamesTheTagWhenThereIsNoBlockLeft) {
  const OwnDevice sim(Mode{}, {.kind = DeviceKind::kCpuSim, .threads = 1, .capacity = Bytes(4096)});
  const auto stream = sim.stream("stream");
  const Buffer most(Elements(3072), DType::kU8, kTag, *stream);
  EXPECT_TRUE(
      contains(thrown<OutOfMemoryError>([&] { Buffer(Elements(2048), DType::kU8, kTag, *stream); }),
               {"cpu:sim", "4.0 KiB", "2.0 KiB left for gathered", "3.0 KiB in blocks"}));
}

/// Two streams write one block in turn; returns whether each found its own value at the end of its
/// use.
bool reuse_is_ordered(std::uint64_t seed, WaitCounter& counter) {
  const auto executor = internal::make_stepped_executor(seed);
  DroppingDevice device(internal::make_cpu_device({.threads = 1}, *executor), counter);
  const auto a = device.make_stream({.name = "a"});
  const auto b = device.make_stream({.name = "b"});
  bool right = true;
  for (int i = 0; i < 4; ++i) {
    Stream& stream = i % 2 == 0 ? *a : *b;
    const Buffer buffer(Elements(16), DType::kI32, kTag, stream);
    auto* data = internal::native<std::int32_t>(buffer.view());
    stream.call("write", [data, i] { data[0] = i; });
    stream.call("check", [data, i, &right] { right = right && data[0] == i; });
  }
  a->synchronize();
  b->synchronize();
  return right;
}

TEST(PoolInStreamOrder, KeepsUsersApart) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    WaitCounter counter;
    ASSERT_TRUE(reuse_is_ordered(seed, counter)) << "seed " << seed;
    ASSERT_EQ(counter.count(), 3);
  }
}

TEST(PoolInStreamOrder, NeedsEachOfItsWaits) {
  for (std::int64_t number = 0; number < 3; ++number) {
    int noticed = 0;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      WaitCounter counter(number);
      noticed += !reuse_is_ordered(seed, counter);
    }
    EXPECT_GT(noticed, 0) << "wait " << number;
  }
}

/// Blocks from the heap, counted.
class CountingSource final : public BlockSource {
 public:
  void* take(Bytes size) override {
    ++held;
    return std::aligned_alloc(kAlignment, static_cast<std::size_t>(size.count()));
  }
  void give(void* block, Bytes) noexcept override {
    --held;
    std::free(block);
  }
  int held = 0;
};

TEST(PoolResource, GivesEveryBlockBackAtTheEnd) {
  const OwnDevice own{Mode{}};
  const auto stream = own.stream("stream");
  CountingSource source;
  {
    PoolResource pool(source);
    void* first = pool.allocate(Bytes(64), kTag, *stream);
    void* second = pool.allocate(Bytes(128), kTag, *stream);
    pool.deallocate(first, Bytes(64), kTag, *stream);
    pool.deallocate(second, Bytes(128), kTag, *stream);
    EXPECT_EQ(source.held, 2);
  }
  EXPECT_EQ(source.held, 0);
}

TEST(PoolResource, KeepsABlockWhoseWaitFails) {
  const OwnDevice own{Mode{}};
  const OwnDevice other{Mode{0}};
  const auto threaded = own.stream("threaded");
  const auto with_the_same_id = other.stream("with the id of the threaded one");
  const auto foreign = other.stream("foreign");
  CountingSource source;
  PoolResource pool(source);
  void* block = pool.allocate(Bytes(64), kTag, *foreign);
  foreign->call("pending", [] {});
  pool.deallocate(block, Bytes(64), kTag, *foreign);
  EXPECT_THROW(static_cast<void>(pool.allocate(Bytes(64), kTag, *threaded)), UsageError);
  foreign->synchronize();
  void* again = pool.allocate(Bytes(64), kTag, *threaded);
  EXPECT_EQ(again, block);
  pool.deallocate(again, Bytes(64), kTag, *threaded);
}

TEST(DeviceMemory, IsAllReturnedEachOfTwentyTimes) {
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCpuSim}) {
    const OwnDevice own(Mode{}, {.kind = kind, .threads = 1, .capacity = Bytes(1 << 16)});
    for (int i = 0; i < 20; ++i) {
      const auto stream = own.stream("stream");
      const Buffer large(Elements(40000), DType::kU8, MemoryTag::kShards, *stream);
      const Buffer small(Elements(100), DType::kU8, MemoryTag::kGrads, *stream);
    }
    EXPECT_EQ(own.device->stats().in_use(), MemoryByTag());
    own.device->pool().trim();
    EXPECT_EQ(own.device->pool().reserved(), Bytes(0));
  }
}

}  // namespace
}  // namespace zero3
