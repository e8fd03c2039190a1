#include <zero3/activation_store.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/contains.h"
#include "support/run_ranks.h"
#include "support/temp_dir.h"
#include "zero/store_passes.h"

namespace zero3::test {
namespace {

struct Where {
  DeviceKind kind;
  CheckpointMode mode;
  [[nodiscard]] bool moves() const {
    return mode == CheckpointMode::kDisk ||
           (mode == CheckpointMode::kHost && kind == DeviceKind::kCpuSim);
  }
  friend std::ostream& operator<<(std::ostream& out, const Where& w) {
    return out << name_of(w.kind) << ", " << name_of(w.mode);
  }
};

std::vector<Where> everywhere() {
  std::vector<Where> all;
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCpuSim}) {
    for (const CheckpointMode mode : kCheckpointModes) all.push_back({kind, mode});
  }
  return all;
}

TEST(ActivationStore, GivesBackEveryTensorAndMovesWhatItPredicts) {
  const TempDir dir;
  for (const Where& where : everywhere()) {
    run_ranks(1,
              [&](Rank& rank) {
                ActivationStore store(*rank.device, *rank.stream, checkpoints(where.mode, dir),
                                      kCount, Elements(kSize), DType::kF32);
                const MemoryPlan plan = store.plan();
                const bool moves = where.moves();
                EXPECT_EQ(store.moving(), moves ? kCount - 2 : 0) << where;
                store.build();
                Passes passes(store, *rank.stream);
                for (const float pass : {1.0F, 2.0F, 3.0F}) {
                  passes.forward(pass);
                  EXPECT_EQ(passes.backward(), Passes::expected(pass)) << where;
                }
                EXPECT_EQ(rank.device->stats().peak(), plan) << where;
                EXPECT_EQ(plan.total(), aligned(Bytes(kSize * 4)) * (moves ? 2 : kCount)) << where;
                const Bytes moved = Bytes(kSize * 4) * (moves ? 3 * (kCount - 2) : 0);
                const OffloadCounters counters = store.counters();
                const bool disk = where.mode == CheckpointMode::kDisk;
                EXPECT_EQ(counters.to_host, disk ? Bytes(0) : moved) << where;
                EXPECT_EQ(counters.from_host, disk ? Bytes(0) : moved) << where;
                EXPECT_EQ(counters.to_disk, disk ? moved : Bytes(0)) << where;
                EXPECT_EQ(counters.from_disk, disk ? moved : Bytes(0)) << where;
                EXPECT_EQ(counters.moving_seconds > 0, moves) << where;
              },
              {.kind = where.kind});
  }
}

TEST(ActivationStore, AShorterPassMovesLess) {
  const TempDir dir;
  for (const Where& where : everywhere()) {
    run_ranks(1,
              [&](Rank& rank) {
                ActivationStore store(*rank.device, *rank.stream, checkpoints(where.mode, dir),
                                      kCount, Elements(kSize), DType::kF32);
                store.build();
                Passes passes(store, *rank.stream);
                std::int64_t moved = 0;
                for (const std::int64_t size : {7L, 0L, kSize, 1025L}) {
                  passes.forward(4, size);
                  EXPECT_EQ(passes.backward(size), Passes::expected(4, size)) << where;
                  moved += where.moves() ? size * 4 * (kCount - 2) : 0;
                }
                const OffloadCounters counters = store.counters();
                EXPECT_EQ(counters.to_host + counters.to_disk, Bytes(moved)) << where;
                EXPECT_TRUE(contains(usage_error([&] { store.begin(Elements(kSize + 1)); }),
                                     {"1501", "1500"}));
              },
              {.kind = where.kind});
  }
}

// A disk's chunks: a tensor of more than are under way at once. Copies are slower than the disk, so
// that a buffer that is read into too early shows.
TEST(ActivationStore, ALargeTensorPassesThroughSmallBuffers) {
  const TempDir dir;
  constexpr std::int64_t kLarge = (std::int64_t{9} << 20) / 4 + 3;
  for (const Bytes link : {Bytes(0), Bytes(200'000'000)}) {
    const auto device =
        make_device({.kind = DeviceKind::kCpuSim, .threads = 1, .host_link = link, .poison = true});
    const auto stream = device->make_stream({.name = "compute"});
    ActivationStore store(*device, *stream, checkpoints(CheckpointMode::kDisk, dir), kCount,
                          Elements(kLarge), DType::kF32);
    EXPECT_EQ(store.host_bytes(), Bytes(8 << 20));
    store.build();
    Passes passes(store, *stream);
    for (const float pass : {1.0F, 2.0F}) {
      passes.forward(pass, kLarge);
      EXPECT_TRUE(passes.backward(kLarge) == Passes::expected(pass, kLarge)) << link << pass;
    }
  }
}

TEST(ActivationStore, HostMemoryAndFileAreAsLargeAsWhatMoves) {
  const TempDir dir;
  run_ranks(1,
            [&](Rank& rank) {
              const auto store = [&](CheckpointMode mode, std::int64_t count) {
                return ActivationStore(*rank.device, *rank.stream, checkpoints(mode, dir), count,
                                       Elements(3000), DType::kBF16);
              };
              const std::int64_t tensor = aligned(Bytes(6000)).count();
              EXPECT_EQ(store(CheckpointMode::kHost, 32).host_bytes(), Bytes(30 * tensor));
              EXPECT_EQ(store(CheckpointMode::kHost, 32).disk_bytes(), Bytes(0));
              EXPECT_EQ(store(CheckpointMode::kDisk, 32).host_bytes(), Bytes(2 * 8192));
              EXPECT_EQ(store(CheckpointMode::kDisk, 32).disk_bytes(), Bytes(30 * 8192));
              for (const CheckpointMode mode : kCheckpointModes) {
                EXPECT_EQ(store(mode, 2).host_bytes(), Bytes(0));
                EXPECT_EQ(store(mode, 2).disk_bytes(), Bytes(0));
              }
            },
            {.kind = DeviceKind::kCpuSim});
}

// E7
TEST(ActivationStore, APassThatPutsNothingStoresNothing) {
  const TempDir dir;
  for (const Where& where : everywhere()) {
    run_ranks(1,
              [&](Rank& rank) {
                ActivationStore store(*rank.device, *rank.stream, checkpoints(where.mode, dir),
                                      kCount, Elements(kSize), DType::kF32);
                store.build();
                Passes passes(store, *rank.stream);
                passes.forward(1, kSize, false);
                EXPECT_TRUE(contains(usage_error([&] { static_cast<void>(store.take(4)); }),
                                     {"take of tensor 4", "0 of 5", "training forward"}));
                rank.stream->synchronize();
                EXPECT_EQ(store.counters().to_host + store.counters().to_disk, Bytes(0));
                passes.forward(2);
                EXPECT_EQ(passes.backward(), Passes::expected(2)) << where;
              },
              {.kind = where.kind});
  }
}

// A forward whose backward never comes, a backward that stops half-way.
TEST(ActivationStore, WhatAPassLeavesTheNextOneDrops) {
  const TempDir dir;
  for (const Where& where : everywhere()) {
    for (const std::optional<std::uint64_t> seed : {std::optional<std::uint64_t>(), {7}, {8}}) {
      run_ranks(1,
                [&](Rank& rank) {
                  ActivationStore store(*rank.device, *rank.stream, checkpoints(where.mode, dir),
                                        kCount, Elements(kSize), DType::kF32);
                  store.build();
                  const std::int64_t blocks = rank.device->pool().blocks_taken();
                  Passes passes(store, *rank.stream);
                  for (int repeat = 0; repeat < 3; ++repeat) {
                    passes.forward(1);
                    passes.forward(2);
                    static_cast<void>(store.take(4));
                    static_cast<void>(store.take(3));
                    passes.forward(3, 9, false);
                    passes.forward(4);
                    EXPECT_EQ(passes.backward(), Passes::expected(4)) << where;
                  }
                  EXPECT_EQ(rank.device->pool().blocks_taken(), blocks) << where;
                },
                {.seed = seed, .kind = where.kind});
    }
  }
}

TEST(ActivationStore, TensorsAreTakenOnceAndInOrder) {
  const TempDir dir;
  run_ranks(1,
            [&](Rank& rank) {
              ActivationStore store(*rank.device, *rank.stream,
                                    checkpoints(CheckpointMode::kHost, dir), kCount,
                                    Elements(kSize), DType::kF32);
              EXPECT_TRUE(contains(usage_error([&] { store.put(0); }), {"before build()"}));
              store.build();
              EXPECT_TRUE(contains(usage_error([&] { store.build(); }), {"twice"}));
              const auto take = [&](std::int64_t i) {
                return usage_error([&] { static_cast<void>(store.take(i)); });
              };
              store.begin(Elements(kSize));
              EXPECT_TRUE(contains(usage_error([&] { store.put(1); }), {"tensor 1", "tensor 0"}));
              EXPECT_TRUE(contains(usage_error([&] { store.put(kCount); }), {"put of tensor 5"}));
              Passes passes(store, *rank.stream);
              passes.forward(1);
              EXPECT_TRUE(contains(take(3), {"take of tensor 3", "tensor 4 is next", "once"}));
              EXPECT_EQ(passes.backward(), Passes::expected(1)) << "an error takes nothing";
              EXPECT_TRUE(contains(take(4), {"take of tensor 4", "is next"}));
              EXPECT_TRUE(contains(take(0), {"take of tensor 0", "is next"}));
            },
            {.kind = DeviceKind::kCpuSim});
}

// E5, E9: a store that is on and moves nothing says why.
TEST(ActivationStore, RemarksOnWhatIsNotAsItsModeSays) {
  const TempDir dir;
  for (const Where& where : everywhere()) {
    run_ranks(1,
              [&](Rank& rank) {
                ActivationStore store(*rank.device, *rank.stream, checkpoints(where.mode, dir), 2,
                                      Elements(10), DType::kF32);
                const std::string remark = store.remark();
                if (where.moves()) {
                  EXPECT_TRUE(contains(remark, {"the last 2 always", "there are 2 layers"}));
                } else if (where.mode == CheckpointMode::kHost) {
                  EXPECT_TRUE(contains(remark, {"one memory on 'cpu'"}));
                } else {
                  EXPECT_EQ(remark, "") << where;
                }
              },
              {.kind = where.kind});
  }
}

TEST(ActivationStore, LimitsAreKeptBeforeTheFirstPass) {
  const TempDir dir;
  run_ranks(1,
            [&](Rank& rank) {
              ActivationCheckpoints options{.mode = CheckpointMode::kHost,
                                            .host_limit = Bytes(3 * 4096 - 2048)};
              const auto build = [&](std::int64_t size) {
                return usage_error([&] {
                  ActivationStore(*rank.device, *rank.stream, options, kCount, Elements(size),
                                  DType::kF32)
                      .build();
                });
              };
              EXPECT_TRUE(contains(build(1024), {"need 12.0 KiB", "the limit is 10.0 KiB"}));
              options.host_limit = Bytes(3 * 4096);
              EXPECT_EQ(build(1024), "nothing was thrown");
              options.host_limit = Bytes(INT64_MAX);
              EXPECT_TRUE(contains(build(std::int64_t{1} << 45),
                                   {"of host memory", "leaves", "let layer inputs wait on disk"}));
              options = {.mode = CheckpointMode::kDisk};
              EXPECT_TRUE(contains(build(1024), {"'disk'", "need a directory"}));
              options = {.mode = CheckpointMode::kHost, .directory = "/tmp"};
              EXPECT_TRUE(contains(build(1024), {"'host'", "need no directory"}));
              options = {.mode = CheckpointMode::kDisk, .directory = "/gone"};
              EXPECT_TRUE(contains(build(1024), {"'/gone'", "is no directory"}));
            },
            {.kind = DeviceKind::kCpuSim});
}

}  // namespace
}  // namespace zero3::test
