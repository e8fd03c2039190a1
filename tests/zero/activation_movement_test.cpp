// What goes wrong while tensors of an ActivationStore move, and in what order they may.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero3/activation_store.h>
#include "support/contains.h"
#include "support/dropping_device.h"
#include "support/offload_faults.h"
#include "support/run_ranks.h"
#include "support/temp_dir.h"
#include "support/wait_analysis.h"
#include "zero/store_passes.h"

namespace zero3::test {
namespace {

// E10: a write that fails at the k-th tensor is an error of this pass, and of no other.
TEST(ActivationMovement, AFullDiskFailsThePassThatMeetsIt) {
  const TempDir dir;
  for (const std::int64_t k : {0, 1, 2}) {
    run_ranks(1, [&](Rank& rank) {
      ActivationStore store(*rank.device, *rank.stream, checkpoints(CheckpointMode::kDisk, dir),
                            kCount, Elements(kSize), DType::kF32);
      store.build();
      Passes passes(store, *rank.stream);
      {
        const LargestFile full(k * 8192 + 100);
        passes.forward(1);
        const std::string error =
            message_of<IoError>([&] { static_cast<void>(passes.backward()); });
        EXPECT_TRUE(contains(error, {"cannot write", "layer " + std::to_string(k)}));
      }
      for (const float pass : {2.0F, 3.0F}) {
        passes.forward(pass);
        EXPECT_EQ(passes.backward(), Passes::expected(pass)) << "write " << k;
      }
    });
  }
  EXPECT_TRUE(nameless_files_in(dir.path()).empty());
}

TEST(ActivationMovement, AChangedFileFailsThePassThatReadsIt) {
  const TempDir dir;
  run_ranks(1, [&](Rank& rank) {
    ActivationStore store(*rank.device, *rank.stream, checkpoints(CheckpointMode::kDisk, dir),
                          kCount, Elements(kSize), DType::kF32);
    store.build();
    Passes passes(store, *rank.stream);
    passes.forward(1);
    rank.stream->synchronize();
    flip_byte(nameless_files_in(dir.path()).at(0), 8192 + 17);
    EXPECT_TRUE(contains(message_of<IoError>([&] { static_cast<void>(passes.backward()); }),
                         {"not what was written", "layer 1"}));
    passes.forward(2);
    EXPECT_EQ(passes.backward(), Passes::expected(2));
  });
}

// Every order that the streams allow gives the same tensors, and a wait less is noticed.
class ActivationMovementSchedules : public testing::TestWithParam<CheckpointMode> {
 protected:
  /// What three training passes read.
  std::vector<std::vector<float>> run(std::uint64_t seed, StreamObserver& observer) {
    std::vector<std::vector<float>> read;
    run_ranks(1,
              [&](Rank& rank) {
                rank.stream.reset();
                ObservedDevice device(std::move(rank.device), observer);
                const std::unique_ptr<Stream> compute = device.make_stream({.name = "compute"});
                ActivationStore store(device, *compute, checkpoints(GetParam(), dir_), kCount,
                                      Elements(300), DType::kF32);
                store.build();
                Passes passes(store, *compute);
                for (const float pass : {1.0F, 2.0F, 3.0F}) {
                  passes.forward(pass, 300);
                  for (auto& tensor : passes.backward(300)) read.push_back(std::move(tensor));
                }
              },
              {.seed = seed, .kind = DeviceKind::kCpuSim});
    return read;
  }

 private:
  TempDir dir_;
};

TEST_P(ActivationMovementSchedules, EveryNeededWaitIsNoticedWhenItIsDropped) {
  WaitAnalysis analysis;
  const auto want = run(0, analysis);
  EXPECT_GT(analysis.needed().size(), 10U);
  for (std::uint64_t seed = 1; seed < 40; ++seed) {
    StreamObserver nothing;
    ASSERT_EQ(run(seed, nothing), want) << "seed " << seed;
  }
  expect_dropped_waits_noticed(
      analysis.needed(), want,
      [&](std::uint64_t seed, StreamObserver& observer) { return run(seed, observer); });
}

INSTANTIATE_TEST_SUITE_P(Modes, ActivationMovementSchedules,
                         testing::Values(CheckpointMode::kHost, CheckpointMode::kDisk),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace zero3::test
