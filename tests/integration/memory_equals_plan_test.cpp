// A run's peak is its plan, tag by tag (D6, D9), and nothing is allocated after the first step.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "support/toy_model.h"

namespace zero3::test {
namespace {

using toy::RunOptions;
using toy::Shape;
using toy::ToyModel;

constexpr Shape kShape{.width = 29, .hidden = 37, .vocab = 90, .rows = 3, .layers = 4};

struct Measured {
  MemoryPlan plan;
  MemoryByTag peak;
  std::int64_t blocks_after_first = 0, blocks_at_end = 0;
};

/// Of rank 0, after three steps with an evaluation behind each.
Measured measure(int world_size, const RunOptions& options, DeviceKind kind) {
  Measured measured;
  const auto rank_main = [&](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, options.engine);
    ToyModel model(engine, options.shape, options.checkpoints);
    const MemoryPlan plan = engine.plan() + model.plan();
    engine.build();
    model.build();
    Measured own{.plan = plan, .peak = {}};
    for (int step = 0; step < 3; ++step) {
      static_cast<void>(toy::train(engine, model, 1));
      if (step == 0) own.blocks_after_first = rank.device->pool().blocks_taken();
    }
    own.peak = rank.device->stats().peak();
    own.blocks_at_end = rank.device->pool().blocks_taken();
    if (rank.rank == 0) measured = own;
  };
  run_ranks(world_size, rank_main, {.kind = kind});
  return measured;
}

std::string text_of(const RunOptions& options) {
  const EngineOptions& e = options.engine;
  return concat("micro_steps ", e.micro_steps, ", prefetch ", e.prefetch, ", slots ", e.grad_slots,
                ", kept below ", e.keep_gathered_below, ", ", e.precision.param,
                e.accumulation == Accumulation::kKeepFull ? ", full gradients kept" : "",
                ", layer inputs ", name_of(options.checkpoints.mode),
                options.shape.tied ? ", tied" : "");
}

class MemoryEqualsPlan : public testing::TestWithParam<int> {
 protected:
  void expect_plan(const RunOptions& options, DeviceKind kind = DeviceKind::kCpu) const {
    const Measured m = measure(GetParam(), options, kind);
    for (std::size_t i = 0; i < kMemoryTagCount; ++i) {
      const auto tag = static_cast<MemoryTag>(i);
      EXPECT_EQ(m.peak[tag].count(), m.plan[tag].count())
          << name_of(tag) << ": " << text_of(options);
    }
    EXPECT_EQ(m.blocks_at_end, m.blocks_after_first) << text_of(options);
  }
};

TEST_P(MemoryEqualsPlan, ForEveryPolicyOfMovement) {
  RunOptions options{.shape = kShape};
  for (const DType param : {DType::kF32, DType::kBF16}) {
    options.engine.precision.param = param;
    for (const int micro_steps : {1, 2, 3}) {
      options.engine.micro_steps = micro_steps;
      for (const auto policy : {Accumulation::kReduceEachMicroStep, Accumulation::kKeepFull}) {
        options.engine.accumulation = policy;
        for (const int prefetch : {0, 1, 2}) {
          options.engine.prefetch = prefetch;
          expect_plan(options);
        }
      }
    }
  }
}

TEST_P(MemoryEqualsPlan, WhereSmallGroupsStayGathered) {
  RunOptions options{.shape = kShape};
  // The table is smaller than a layer, and is the first and the last of a pass.
  options.engine.keep_gathered_below = Elements(90 * 29 + 1);
  for (const int micro_steps : {1, 3}) {
    options.engine.micro_steps = micro_steps;
    for (const int prefetch : {0, 1, 3}) {
      options.engine.prefetch = prefetch;
      for (const bool tied : {false, true}) {
        options.shape.tied = tied;
        expect_plan(options);
      }
    }
  }
}

TEST_P(MemoryEqualsPlan, WhereverLayerInputsWait) {
  const TempDir dir;
  RunOptions options{.shape = kShape};
  for (const auto mode :
       {CheckpointMode::kRecompute, CheckpointMode::kHost, CheckpointMode::kDisk}) {
    options.checkpoints.mode = mode;
    options.checkpoints.directory = mode == CheckpointMode::kDisk ? dir.path().string() : "";
    for (const std::size_t layers : {0U, 1U, 2U, 3U, 7U}) {
      options.shape.layers = layers;
      for (const bool tied : {false, true}) {
        options.shape.tied = tied;
        for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCpuSim})
          expect_plan(options, kind);
      }
    }
  }
}

TEST_P(MemoryEqualsPlan, ForAnyNumberOfGradientSlots) {
  RunOptions options{.shape = kShape};
  for (const int micro_steps : {1, 2, 4}) {
    options.engine.micro_steps = micro_steps;
    for (const int slots : {1, 2, 3, 9}) {
      options.engine.grad_slots = slots;
      for (const bool tied : {false, true}) {
        options.shape.tied = tied;
        expect_plan(options);
      }
    }
  }
}

TEST_P(MemoryEqualsPlan, UnderABoundOfGatheredBytes) {
  const int world_size = GetParam();
  RunOptions options{.shape = kShape};
  options.engine.precision.param = DType::kBF16;
  options.engine.prefetch = 3;
  // Sub-groups of a layer: bf16, fp32 scale and frozen shift; two layers fit and no third.
  const auto full = [&](std::int64_t n, std::int64_t size) {
    return shard_size(Elements(n), world_size).count() * world_size * size;
  };
  const std::int64_t fp32 = world_size == 1 ? 0 : full(29, 4);
  const std::int64_t layer = full(1088 + 64 + 29 * 37, 2) + fp32 + full(29, 2);
  options.engine.gathered_limit = Bytes(2 * layer + 512);
  expect_plan(options);
}

TEST_P(MemoryEqualsPlan, WeightsGradientsAndMomentsTake16BytesPerParameterOverN) {
  const int world_size = GetParam();
  run_ranks(world_size, [&](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.prefetch = 0});
    engine.add_group(group_of("a", {100000}));
    engine.add_group(group_of("b", {7}));
    const std::int64_t shard =
        (div_ceil(100000, world_size * 1024) + div_ceil(7, world_size * 1024)) * 1024;
    engine.build();
    const MemoryByTag in_use = rank.device->stats().in_use();
    EXPECT_EQ(in_use[MemoryTag::kShards], Bytes(4 * shard));
    EXPECT_EQ(in_use[MemoryTag::kGrads], Bytes(4 * shard));
    EXPECT_EQ(in_use[MemoryTag::kOptimizer], Bytes(8 * shard));
  });
}

// The plan is that of the declared order, whatever the groups' sizes.
TEST_P(MemoryEqualsPlan, ForGroupsOfUnequalSizesInADeclaredOrder) {
  const std::vector<std::int64_t> sizes = {9000, 100, 30000, 2500, 17000, 5000};
  const std::vector<std::vector<int>> orders = {
      {0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0}, {3, 3, 0, 5, 1, 2, 4}, {4, 2, 4, 2, 4, 0, 1, 3, 5}};
  for (const std::vector<int>& order : orders) {
    for (const int prefetch : {0, 1, 2, 7}) {
      for (const std::int64_t keep : {0, 3000, 10000}) {
        run_ranks(GetParam(), [&](Rank& rank) {
          Engine engine(*rank.device, *rank.communicator,
                        {.micro_steps = 2,
                         .prefetch = prefetch,
                         .grad_slots = prefetch + 1,
                         .keep_gathered_below = Elements(keep)});
          std::vector<GroupId> groups, gathers, gradients;
          for (std::size_t i = 0; i < sizes.size(); ++i) {
            groups.push_back(
                engine.add_group(group_of("g" + std::to_string(i), {sizes[i]}, {}, 2)));
          }
          for (const int i : order) gathers.push_back(groups[static_cast<std::size_t>(i)]);
          std::vector<int> expected(sizes.size(), 0);
          for (const GroupId id : gathers) {
            if (++expected[static_cast<std::size_t>(id.index)] <= 2) gradients.push_back(id);
          }
          engine.expect_order(gathers, gradients);
          const MemoryPlan plan = engine.plan();
          engine.build();
          for (int step = 0; step < 2; ++step) {
            for (int m = 0; m < 2; ++m) {
              const MicroStep scope = engine.begin_micro_step();
              std::vector<int> uses(sizes.size(), 0);
              for (const GroupId id : gathers) {
                static_cast<void>(engine.gather(id));
                if (++uses[static_cast<std::size_t>(id.index)] <= 2)
                  static_cast<void>(engine.grads(id));
              }
            }
            engine.step({.learning_rate = 0.1});
          }
          EXPECT_EQ(rank.device->stats().peak(), plan)
              << to_table(rank.device->stats().peak()) << to_table(plan) << "prefetch " << prefetch
              << ", kept below " << keep;
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, MemoryEqualsPlan, testing::Values(1, 2, 4),
                         [](const auto& test) { return std::to_string(test.param); });

}  // namespace
}  // namespace zero3::test
