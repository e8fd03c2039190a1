// Every order of operations that the streams allow gives the same bits, and every wait that the
// order needs is noticed when it is missing.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "support/dropping_device.h"
#include "support/toy_model.h"
#include "support/wait_analysis.h"

namespace zero3::test {
namespace {

using toy::run_toy;
using toy::RunOptions;
using toy::Shape;
using toy::ToyModel;
using toy::Trajectory;

// Large enough that both of two ranks own elements of every group.
constexpr Shape kSmall{.width = 36, .hidden = 31, .vocab = 30, .rows = 2, .layers = 2};

RunOptions small_options() {
  RunOptions options{.shape = kSmall, .steps = 2};
  options.engine = {.clip = 0.1, .micro_steps = 2};
  return options;
}

TEST(Schedules, TwoHundredSeedsGiveTheSameBits) {
  const RunOptions options = small_options();
  const Trajectory want = run_toy(2, options);
  for (std::uint64_t seed = 0; seed < 200; ++seed)
    ASSERT_EQ(run_toy(2, options, {.seed = seed}), want) << "seed " << seed;
}

TEST(Schedules, SoDoOtherOptionsAndWorldSizes) {
  std::vector<RunOptions> variants(4, small_options());
  variants[0].engine.precision = {.param = DType::kBF16, .reduce = DType::kBF16};
  variants[0].engine.prefetch = 2;
  variants[1].engine.accumulation = Accumulation::kKeepFull;
  variants[1].engine.prefetch = 0;
  variants[2].engine.keep_gathered_below = Elements(20);
  variants[2].engine.grad_slots = 3;
  variants[3].engine.grad_slots = 1;
  variants[3].shape.tied = false;
  variants[3].checkpoints.mode = CheckpointMode::kRecompute;
  for (const RunOptions& options : variants) {
    for (const int ranks : {1, 2, 3}) {
      const Trajectory want = run_toy(ranks, options);
      for (std::uint64_t seed = 0; seed < 16; ++seed)
        ASSERT_EQ(run_toy(ranks, options, {.seed = seed}), want) << ranks << ", seed " << seed;
    }
  }
}

// With what happens between steps: evaluation, a reset, whole parameters, a skipped step.
TEST(Schedules, SoDoesWhatHappensBetweenSteps) {
  const auto run = [](std::optional<std::uint64_t> seed) {
    std::vector<float> weights;
    run_ranks(2,
              [&](Rank& rank) {
                Engine engine(*rank.device, *rank.communicator, {.prefetch = 2});
                ToyModel model(engine, kSmall);
                engine.build();
                model.build();
                for (int step = 0; step < 3; ++step) {
                  {
                    MicroStep scope = engine.begin_micro_step();
                    model.train(scope, step, rank.rank);
                  }
                  if (step == 1) engine.reset();
                  if (step != 1) engine.step({.learning_rate = 0.1});
                  static_cast<void>(model.evaluate(step, 0));
                  std::vector<float> scale = engine.read_parameter("layer.1.scale");
                  for (float& value : scale) value *= 1.5F;
                  engine.write_parameter("layer.1.scale", scale);
                }
                const std::vector<float> own = engine.read_parameter("layer.1.w1");
                if (rank.rank == 0) weights = own;
              },
              {.seed = seed});
    return weights;
  };
  const std::vector<float> want = run(std::nullopt);
  for (std::uint64_t seed = 0; seed < 100; ++seed) ASSERT_EQ(run(seed), want) << "seed " << seed;
}

// Dropped waits

/// What two ranks see on a stepped executor, where the streams of one of them are observed.
std::vector<Trajectory> observed_run(const RunOptions& options, std::uint64_t seed, int observed,
                                     StreamObserver& observer) {
  std::vector<Trajectory> all(2);
  run_ranks(2,
            [&](Rank& rank) {
              std::unique_ptr<Device> device;
              if (rank.rank == observed) {
                rank.stream.reset();
                device = std::make_unique<ObservedDevice>(std::move(rank.device), observer);
              }
              Engine engine(device ? *device : *rank.device, *rank.communicator, options.engine);
              ToyModel model(engine, options.shape, options.checkpoints);
              engine.build();
              model.build();
              all[static_cast<std::size_t>(rank.rank)] = toy::train(engine, model, options.steps);
            },
            {.seed = seed});
  return all;
}

// The waits that are not dropped are implied by others: those that the pool makes for a block whose
// last user the stream has waited for already, or the host in the step's exchange. The pool does
// not know, and they cost nothing.
class DroppedWaits : public testing::TestWithParam<int> {};

TEST_P(DroppedWaits, EveryNeededOneIsNoticedBySomeSeed) {
  const RunOptions options = small_options();
  const int rank = GetParam();
  WaitAnalysis analysis;
  const std::vector<Trajectory> want = observed_run(options, 0, rank, analysis);
  expect_dropped_waits_noticed(analysis.needed(), want,
                               [&](std::uint64_t seed, StreamObserver& observer) {
                                 return observed_run(options, seed, rank, observer);
                               });
}

INSTANTIATE_TEST_SUITE_P(Rank, DroppedWaits, testing::Values(0, 1),
                         [](const auto& test) { return std::to_string(test.param); });

}  // namespace
}  // namespace zero3::test
