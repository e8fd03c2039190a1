#include "sharded_optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/engine_ops.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

/// AdamW in double.
double adamw(double w, const std::vector<double>& gradients, double rate, const OptimizerGroup& h) {
  double m = 0, v = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const auto t = static_cast<double>(i + 1);
    m = h.beta1 * m + (1 - h.beta1) * gradients[i];
    v = h.beta2 * v + (1 - h.beta2) * gradients[i] * gradients[i];
    const double lr = rate * h.learning_rate_factor;
    w = w * (1 - lr * h.weight_decay) -
        lr * (m / (1 - std::pow(h.beta1, t))) / (std::sqrt(v / (1 - std::pow(h.beta2, t))) + h.eps);
  }
  return w;
}

const std::vector<OptimizerGroup> kThreeGroups = {
    {.weight_decay = 0.1},
    {.weight_decay = 0.0, .learning_rate_factor = 0.5},
    {.beta1 = 0.5, .beta2 = 0.8, .eps = 1e-3, .weight_decay = 0.3, .learning_rate_factor = 2.0}};

/// Weights a, b, c of three optimizer groups, interleaved in one group, after some steps.
std::vector<std::vector<float>> train(int world_size, const std::vector<OptimizerGroup>& hyper,
                                      OptimizerKind kind) {
  std::vector<std::vector<float>> weights;
  run_ranks(world_size, [&](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.optimizer = kind, .optimizer_groups = hyper});
    GroupSpec spec{.name = "g", .params = {}};
    for (const int group : {0, 1, 2, 0, 2, 1}) {
      spec.params.push_back({.name = "p" + std::to_string(spec.params.size()),
                             .shape = {900},
                             .init = Init::ones(),
                             .optimizer_group = group});
    }
    const GroupId id = engine.add_group(spec);
    engine.build();
    for (int step = 0; step < 3; ++step) {
      {
        const MicroStep scope = engine.begin_micro_step();
        const Gradients grads = engine.grads(id);
        for (int p = 0; p < 6; ++p) {
          add_gradient(engine, grads[p], [step](std::int64_t i) {
            return 0.5F + static_cast<float>(step) + 0.001F * static_cast<float>(i);
          });
        }
      }
      engine.step({.learning_rate = 0.01, .divisor = static_cast<double>(world_size)});
    }
    for (const ParamSpec& param : spec.params) {
      const std::vector<float> values = engine.read_parameter(param.name);
      if (rank.rank == 0) weights.push_back(values);
    }
  });
  return weights;
}

// G2
TEST(ShardedOptimizer, EachParameterHasTheHyperparametersOfItsGroup) {
  for (const int world_size : {1, 3}) {
    const auto weights = train(world_size, kThreeGroups, OptimizerKind::kAdamW);
    const std::vector<std::size_t> groups = {0, 1, 2, 0, 2, 1};
    for (std::size_t p = 0; p < weights.size(); ++p) {
      for (const std::size_t i : {0U, 1U, 511U, 899U}) {
        std::vector<double> gradients;
        for (int step = 0; step < 3; ++step)
          gradients.push_back(0.5 + step + 0.001 * static_cast<double>(i));
        EXPECT_NEAR(weights[p][i], adamw(1.0, gradients, 0.01, kThreeGroups[groups[p]]), 1e-6)
            << world_size << " ranks, parameter " << p << ", element " << i;
      }
    }
  }
}

// G2
TEST(ShardedOptimizer, ChangingOneGroupChangesOnlyIts) {
  const auto before = train(2, kThreeGroups, OptimizerKind::kAdamW);
  std::vector<OptimizerGroup> changed = kThreeGroups;
  changed[1].weight_decay = 0.4;
  const auto after = train(2, changed, OptimizerKind::kAdamW);
  for (const std::size_t p : {0U, 2U, 3U, 4U}) EXPECT_EQ(before[p], after[p]) << p;
  for (const std::size_t p : {1U, 5U}) EXPECT_NE(before[p], after[p]) << p;
}

TEST(ShardedOptimizer, SgdHasDecayAndRateOfTheGroup) {
  const auto weights = train(2, kThreeGroups, OptimizerKind::kSgd);
  const auto sgd = [](std::size_t i, const OptimizerGroup& h) {
    double w = 1.0;
    for (int step = 0; step < 3; ++step) {
      const double g = 0.5 + step + 0.001 * static_cast<double>(i);
      w -= 0.01 * h.learning_rate_factor * (g + h.weight_decay * w);
    }
    return w;
  };
  for (const std::size_t i : {0U, 899U}) {
    EXPECT_NEAR(weights[0][i], sgd(i, kThreeGroups[0]), 1e-6);
    EXPECT_NEAR(weights[1][i], sgd(i, kThreeGroups[1]), 1e-6);
    EXPECT_NEAR(weights[2][i], sgd(i, kThreeGroups[2]), 1e-6);
  }
}

TEST(ShardedOptimizer, SgdHoldsNoMoments) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.optimizer = OptimizerKind::kSgd});
    engine.add_group(group_of("w", {5000}));
    engine.build();
    EXPECT_EQ(rank.device->stats().peak()[MemoryTag::kOptimizer], Bytes(0));
  });
}

// C1, G4: neither moments nor decay advance, and the group's own count of steps stands still.
TEST(ShardedOptimizer, AGroupThatNoRankUsedIsLeftAlone) {
  for (const int world_size : {1, 2}) {
    run_ranks(world_size, [&](Rank& rank) {
      Engine engine(*rank.device, *rank.communicator,
                    {.optimizer_groups = {{.weight_decay = 0.5}}});
      const GroupId often = engine.add_group(group_of("often", {2000}, Init::ones()));
      const GroupId seldom = engine.add_group(group_of("seldom", {2000}, Init::ones()));
      engine.build();
      for (int step = 0; step < 4; ++step) {
        std::vector<std::pair<GroupId, float>> used;
        // One rank's use is enough.
        if (step % 2 == 0 && rank.rank == 0) used.push_back({seldom, 0.75F});
        used.push_back({often, 0.5F});
        const std::vector<float> before = engine.read_parameter("seldom");
        micro_step_of(engine, used);
        engine.step({.learning_rate = 0.01, .divisor = 1.0});
        if (step % 2 != 0) {
          EXPECT_EQ(engine.read_parameter("seldom"), before);
        }
      }
      const double want = adamw(1.0, {0.75, 0.75}, 0.01, {.weight_decay = 0.5});
      EXPECT_NEAR(engine.read_parameter("seldom")[1999], want, 1e-6);
    });
  }
}

TEST(ShardedOptimizer, ARateOfZeroChangesNothingButMoments) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    const GroupId id = engine.add_group(group_of("w", {100}));
    engine.build();
    const std::uint64_t before = engine.weights_checksum();
    micro_step_of(engine, {{id, 1.0F}});
    EXPECT_TRUE(engine.step({.learning_rate = 0.0}).applied);
    EXPECT_EQ(engine.weights_checksum(), before);
  });
}

}  // namespace
}  // namespace zero3::test
