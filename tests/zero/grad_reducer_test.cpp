#include "grad_reducer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/engine_ops.h"
#include "support/gradient_sums.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

constexpr DType kReduceDtypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// A1
TEST(GradReducer, EveryElementIsExactlyTheMean) {
  for (const int world_size : {1, 2, 3, 4, 5}) {
    for (const DType dtype : kReduceDtypes) {
      run_ranks(world_size, [&](Rank& rank) {
        EngineOptions options = sums_options();
        options.precision.reduce = dtype;
        Engine engine(*rank.device, *rank.communicator, options);
        const GroupId id = engine.add_group(group_of("w", {5000}, Init::zeros()));
        engine.build();
        micro_step_of(engine, {{id, static_cast<float>(rank.rank + 1)}});
        step(engine, world_size);
        const float mean = 0.5F * static_cast<float>(world_size + 1);
        EXPECT_EQ(engine.read_parameter("w"), std::vector<float>(5000, -mean))
            << world_size << " ranks, " << dtype;
      });
    }
  }
}

TEST(GradReducer, AGradientIsRoundedOnceAlsoOnOneRank) {
  for (const int micro_steps : {1, 2}) {
    run_ranks(1, [&](Rank& rank) {
      EngineOptions options = sums_options(micro_steps);
      options.precision.reduce = DType::kBF16;
      Engine engine(*rank.device, *rank.communicator, options);
      const GroupId id = engine.add_group(group_of("w", {10}, Init::zeros()));
      engine.build();
      for (int i = 0; i < micro_steps; ++i) micro_step_of(engine, {{id, 1.0F + 0x1p-10F}});
      step(engine);
      EXPECT_EQ(engine.read_parameter("w"),
                std::vector<float>(10, -static_cast<float>(micro_steps)));
    });
  }
}

// A8: the accumulator is fp32 whatever travels.
TEST(GradReducer, ManySmallGradientsAreAddedExactly) {
  for (const int world_size : {1, 2}) {
    run_ranks(world_size, [&](Rank& rank) {
      EngineOptions options = sums_options(256 / world_size);
      options.precision.reduce = DType::kBF16;
      Engine engine(*rank.device, *rank.communicator, options);
      const GroupId id = engine.add_group(group_of("w", {3}, Init::zeros()));
      engine.build();
      for (int i = 0; i < 256 / world_size; ++i) {
        const bool first = i == 0 && rank.rank == 0;
        micro_step_of(engine, {{id, first ? 1.0F : 0x1p-9F}});
      }
      step(engine);
      EXPECT_EQ(engine.read_parameter("w"), std::vector<float>(3, -(1.0F + 255 * 0x1p-9F)));
    });
  }
}

// The order of j = micro_step · N + rank, where another order rounds otherwise.
TEST(GradReducer, TheFoldGoesByMicroStepAndThenByRank) {
  const std::vector<float> gradients = {1.0F, 0x1p-24F, 0x1p-24F, -1.0F, 0x1p-25F, 3.0F};
  float want = gradients[0];
  for (std::size_t j = 1; j < gradients.size(); ++j) want += gradients[j];
  for (const int world_size : {1, 2, 3, 6}) {
    run_ranks(world_size, [&](Rank& rank) {
      const int micro_steps = 6 / world_size;
      Engine engine(*rank.device, *rank.communicator, sums_options(micro_steps));
      const GroupId id = engine.add_group(group_of("w", {7}, Init::zeros()));
      engine.build();
      for (int i = 0; i < micro_steps; ++i) {
        const auto j = static_cast<std::size_t>(i * world_size + rank.rank);
        micro_step_of(engine, {{id, gradients[j]}});
      }
      step(engine);
      EXPECT_EQ(engine.read_parameter("w"), std::vector<float>(7, -want)) << world_size;
    });
  }
}

// A9
TEST(GradReducer, KeepingFullGradientsAgreesToRoundingWithOneCollectivePerGroup) {
  for (const int world_size : {1, 2, 3}) {
    std::vector<std::vector<float>> weights;
    for (const auto policy : {Accumulation::kReduceEachMicroStep, Accumulation::kKeepFull}) {
      run_ranks(world_size, [&](Rank& rank) {
        EngineOptions options = sums_options(4);
        options.accumulation = policy;
        Engine engine(*rank.device, *rank.communicator, options);
        const GroupId a = engine.add_group(group_of("a", {3000}, Init::zeros()));
        const GroupId b = engine.add_group(group_of("b", {5}, Init::zeros()));
        engine.build();
        const std::int64_t before = reductions(engine);
        for (int i = 0; i < 4; ++i) {
          MicroStep scope = engine.begin_micro_step();
          for (const GroupId id : {b, a}) {
            add_gradient(engine, engine.grads(id)[0], [=, &rank](std::int64_t e) {
              return std::sin(static_cast<float>(e * 7 + i * 3 + rank.rank));
            });
          }
        }
        step(engine);
        const bool each = policy == Accumulation::kReduceEachMicroStep;
        EXPECT_EQ(reductions(engine) - before, each ? 8 : 2);
        const std::vector<float> w = engine.read_parameter("a");
        if (rank.rank == 0) weights.push_back(w);
      });
    }
    for (std::size_t i = 0; i < weights[0].size(); ++i)
      EXPECT_NEAR(weights[0][i], weights[1][i], 1e-6F * 4 * static_cast<float>(world_size));
  }
}

TEST(GradReducer, KeepingFullGradientsHasTheSameBitsForOneMicroStep) {
  std::vector<std::vector<float>> weights;
  for (const auto policy : {Accumulation::kReduceEachMicroStep, Accumulation::kKeepFull}) {
    run_ranks(3, [&](Rank& rank) {
      EngineOptions options = sums_options();
      options.accumulation = policy;
      Engine engine(*rank.device, *rank.communicator, options);
      const GroupId id = engine.add_group(group_of("w", {3000}, Init::zeros()));
      engine.build();
      micro_step_of(engine, {{id, 0.1F * static_cast<float>(rank.rank + 1)}});
      step(engine);
      const std::vector<float> w = engine.read_parameter("w");
      if (rank.rank == 0) weights.push_back(w);
    });
  }
  EXPECT_EQ(weights[0], weights[1]);
}

}  // namespace
}  // namespace zero3::test
