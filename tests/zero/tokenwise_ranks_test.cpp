// Token-wise regions on ranks: unequal lengths, every order of streams, exceptions.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/contains.h"
#include "support/dropping_device.h"
#include "support/run_ranks.h"
#include "support/toy_layers.h"
#include "support/wait_analysis.h"
#include "zero/region_model.h"

namespace zero3::test {
namespace {

/// Steps of ranks with unequal lengths; what each rank's communicator counted.
struct Ragged {
  std::vector<CommCounters> counters;
  std::uint64_t checksum = 0;
};
Ragged run_ragged(const std::vector<std::int64_t>& rows, const std::string& tile,
                  const RanksOptions& options = {}) {
  Ragged ragged;
  ragged.counters.resize(rows.size());
  run_ranks(
      static_cast<int>(rows.size()),
      [&](Rank& rank) {
        const auto own = static_cast<std::size_t>(rank.rank);
        RegionModel model(*rank.device, *rank.communicator,
                          {.tokens = {1, 4000}, .tile = tile, .granule_rows = kDefaultGranuleRows},
                          1);
        const CommCounters before = model.engine.comm_counters();
        {
          const MicroStep scope = model.engine.begin_micro_step();
          model.run({1, rows[own]}, rank.rank);
        }
        model.engine.compute().synchronize();
        CommCounters& counted = ragged.counters[own];
        counted = model.engine.comm_counters();
        for (const CollectiveOp op :
             {CollectiveOp::kAllGather, CollectiveOp::kReduceScatter, CollectiveOp::kAllReduce,
              CollectiveOp::kAllToAll, CollectiveOp::kBroadcast, CollectiveOp::kBarrier}) {
          counted[op].count -= before[op].count;
        }
        model.engine.step({.learning_rate = 0.1, .divisor = 5001.0});
        const std::uint64_t checksum = model.engine.weights_checksum();
        if (rank.rank == 0) ragged.checksum = checksum;
      },
      options);
  return ragged;
}

// H1
TEST(TokenwiseRanks, RanksOfUnequalLengthsGatherAndReduceOnce) {
  const std::vector<std::int64_t> rows = {0, 1, 1000, 4000};
  const Ragged tiled = run_ragged(rows, "rows=512"), whole = run_ragged(rows, "none");
  EXPECT_EQ(tiled.checksum, whole.checksum);
  for (const Ragged* run : {&tiled, &whole}) {
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      // Of the trainable weights and of the frozen one, in forward and backward.
      EXPECT_EQ(run->counters[rank][CollectiveOp::kAllGather].count, 4) << rank;
      EXPECT_EQ(run->counters[rank][CollectiveOp::kReduceScatter].count, 1) << rank;
      for (const CollectiveOp op : {CollectiveOp::kAllReduce, CollectiveOp::kAllToAll,
                                    CollectiveOp::kBroadcast, CollectiveOp::kBarrier}) {
        EXPECT_EQ(run->counters[rank][op].count, 0) << rank;
      }
    }
  }
}

// H9
TEST(TokenwiseRanks, ACountThatDoesNotDivideOrExceedsARanksRowsStillSteps) {
  const std::vector<std::int64_t> rows = {4000, 256, 3, 0};
  EXPECT_EQ(run_ragged(rows, "count=25").checksum, run_ragged(rows, "none").checksum);
}

TEST(TokenwiseRanks, HasTheSameBitsInEveryOrderOfStreams) {
  const std::vector<std::int64_t> rows = {300, 0, 512};
  const std::uint64_t want = run_ragged(rows, "none").checksum;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    ASSERT_EQ(run_ragged(rows, "rows=256", {.seed = seed}).checksum, want) << "seed " << seed;
}

/// What two ranks see of two steps, where the streams of rank 0 are observed, which is told when
/// the second one begins.
std::vector<std::vector<float>> observed_run(std::uint64_t seed, StreamObserver& observer,
                                             const std::function<void()>& second_step = nullptr) {
  std::vector<std::vector<float>> seen(6);
  run_ranks(2,
            [&](Rank& rank) {
              const auto own = static_cast<std::size_t>(rank.rank);
              std::unique_ptr<Device> device;
              if (rank.rank == 0) {
                rank.stream.reset();
                device = std::make_unique<ObservedDevice>(std::move(rank.device), observer);
              }
              RegionModel model(device ? *device : *rank.device, *rank.communicator,
                                {.tokens = {1, 40}, .tile = "rows=16"}, 1);
              for (int step = 0; step < 2; ++step) {
                if (step == 1 && rank.rank == 0 && second_step) second_step();
                {
                  const MicroStep scope = model.engine.begin_micro_step();
                  model.run({1, 40 - 30 * rank.rank}, step * 2 + rank.rank);
                }
                model.engine.step({.learning_rate = 0.1, .divisor = 1.0});
              }
              seen[own] = values_of(model.engine, model.rows_of(model.y, {1, 10}));
              seen[2 + own] = values_of(model.engine, model.rows_of(model.dx, {1, 10}));
              seen[4 + own] = model.engine.read_parameter("mlp.gate");
            },
            {.seed = seed});
  return seen;
}

TEST(TokenwiseRanks, EveryNeededWaitIsNoticedWhenItIsDropped) {
  WaitAnalysis analysis;
  // What the first weights need is the engine's own (Schedules).
  std::size_t first = 0;
  const auto want = observed_run(0, analysis, [&] { first = analysis.waits_so_far().size(); });
  std::vector<std::int64_t> needed = analysis.needed();
  std::erase_if(needed, [&](std::int64_t wait) { return wait < static_cast<std::int64_t>(first); });
  EXPECT_GE(needed.size(), 5U);
  expect_dropped_waits_noticed(needed, want, [](std::uint64_t seed, StreamObserver& observer) {
    return observed_run(seed, observer);
  });
}

// H4
TEST(TokenwiseRanks, AnExceptionReleasesTheWeightsAndReportsNothing) {
  const auto run = [](bool interrupted) {
    std::uint64_t checksum = 0;
    run_ranks(2, [&](Rank& rank) {
      RegionModel model(*rank.device, *rank.communicator, {.tokens = {1, 60}, .tile = "rows=16"},
                        1);
      const auto step = [&] {
        {
          const MicroStep scope = model.engine.begin_micro_step();
          model.run({1, 60}, rank.rank);
        }
        model.engine.step({.learning_rate = 0.1, .divisor = 1.0});
      };
      step();
      if (interrupted) {
        TokenwiseFunction function = model.mlp.function();
        const auto inner = function.backward;
        function.backward = [inner](const TokenTile& tile, std::span<const TensorView> d_out,
                                    std::span<const TensorView> d_in, const Gradients& grads) {
          if (tile.first_row == 32) throw toy::LayerFailure();
          inner(tile, d_out, d_in, grads);
        };
        TokenwiseRegion faulty(model.engine, model.id, function,
                               {.tokens = {1, 60},
                                .tile = parse_tile_policy("rows=16"),
                                .workspace = [&](std::int64_t n) { return model.mlp.workspace(n); },
                                .granule_rows = kGranule});
        faulty.build();
        EXPECT_THROW(
            {
              const MicroStep scope = model.engine.begin_micro_step();
              const TensorView dy = model.dy.view();
              faulty.backward({1, 60}, {{model.x.view()}}, {{dy}}, {{model.dx.view()}});
            },
            toy::LayerFailure);
        EXPECT_EQ(faulty.tiles_run(), 3);
        EXPECT_TRUE(contains(
            usage_error([&] { model.engine.step({.learning_rate = 0.1, .divisor = 1.0}); }),
            {"reset()"}));
        model.engine.reset();
      }
      step();
      const std::uint64_t own = model.engine.weights_checksum();
      if (rank.rank == 0) checksum = own;
    });
    return checksum;
  };
  EXPECT_EQ(run(true), run(false));
}

}  // namespace
}  // namespace zero3::test
