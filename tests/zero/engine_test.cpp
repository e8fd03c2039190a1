#include <zero3/engine.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "support/contains.h"
#include "support/engine_ops.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

// Options

TEST(Engine, OptionsOutOfRangeAreRefusedWithTheirValues) {
  const auto error = [](const EngineOptions& options) {
    return usage_error([&] { one_rank(options, [](Engine&, Rank&) {}); });
  };
  EXPECT_TRUE(contains(error({.micro_steps = 0}), {"micro_steps is 0", "1 or more"}));
  EXPECT_TRUE(contains(error({.prefetch = -1}), {"prefetch is -1"}));
  EXPECT_TRUE(contains(error({.grad_slots = 0}), {"grad_slots is 0"}));
  EXPECT_TRUE(contains(error({.clip = -1}), {"clip is -1"}));
  EXPECT_TRUE(contains(error({.loss_scale = 3}), {"loss_scale is 3", "power of two"}));
  EXPECT_TRUE(contains(error({.loss_scale = 0}), {"loss_scale is 0", "power of two"}));
  EXPECT_TRUE(contains(error({.precision = {.param = DType::kI32}}), {"int32", "fp32, bf16"}));
  EXPECT_TRUE(contains(error({.optimizer_groups = {{.beta1 = 1.0}}}), {"beta1 1", "[0, 1)"}));
}

// Registration

TEST(Engine, NamesAreTakenOnce) {
  one_rank({}, [](Engine& engine, Rank&) {
    engine.add_group(group_of("w", {3}));
    EXPECT_TRUE(contains(usage_error([&] { engine.add_group(group_of("w", {3})); }),
                         {"group 'w'", "twice"}));
    EXPECT_TRUE(contains(usage_error([&] {
                           engine.add_group(
                               {.name = "other", .params = {{.name = "w", .shape = {3}}}});
                         }),
                         {"parameter 'w'", "twice"}));
  });
}

TEST(Engine, ARefusedGroupLeavesNothingBehind) {
  one_rank({}, [](Engine& engine, Rank&) {
    GroupSpec bad = group_of("w", {3});
    bad.params.push_back({.name = "x", .shape = {-1}});
    EXPECT_TRUE(contains(usage_error([&] { engine.add_group(bad); }), {"'x'", "extent -1"}));
    EXPECT_EQ(engine.parameter_count(), Elements(0));
    EXPECT_EQ(engine.add_group(group_of("w", {3})), GroupId{0});
  });
}

TEST(Engine, AnOptimizerGroupThatIsNotThereIsRefused) {
  one_rank({}, [](Engine& engine, Rank&) {
    GroupSpec spec = group_of("w", {3});
    spec.params[0].optimizer_group = 2;
    EXPECT_TRUE(contains(usage_error([&] { engine.add_group(spec); }),
                         {"'w'", "optimizer group 2", "there are 1"}));
  });
}

TEST(Engine, ADtypeThatCannotBeGatheredIsRefused) {
  one_rank({}, [](Engine& engine, Rank&) {
    GroupSpec spec = group_of("w", {3});
    spec.params[0].dtype = DType::kF64;
    EXPECT_TRUE(contains(usage_error([&] { engine.add_group(spec); }), {"'w'", "fp64", "bf16"}));
  });
}

TEST(Engine, AGroupOfNoUsesIsRefused) {
  one_rank({}, [](Engine& engine, Rank&) {
    EXPECT_TRUE(contains(usage_error([&] { engine.add_group(group_of("w", {3}, {}, 0)); }),
                         {"'w'", "0 uses"}));
  });
}

TEST(Engine, NothingIsRegisteredAfterBuild) {
  one_rank({}, [](Engine& engine, Rank&) {
    engine.build();
    EXPECT_TRUE(contains(usage_error([&] { engine.add_group(group_of("w", {3})); }),
                         {"'w'", "after build()"}));
    EXPECT_TRUE(contains(usage_error([&] { engine.expect_order({}, {}); }), {"after build()"}));
    EXPECT_TRUE(contains(usage_error([&] { engine.build(); }), {"twice"}));
  });
}

TEST(Engine, AnOrderOfGroupsThatAreNotThereIsRefused) {
  one_rank({}, [](Engine& engine, Rank&) {
    EXPECT_TRUE(contains(usage_error([&] { engine.expect_order({GroupId{0}}, {}); }),
                         {"no group 0", "0 are registered"}));
    const GroupId id = engine.add_group(group_of("wte", {3}, {}, 2));
    EXPECT_TRUE(contains(usage_error([&] {
                           engine.expect_order({}, {id, id, id});
                         }),
                         {"'wte'", "more than 2 times", "uses"}));
  });
}

TEST(Engine, EveryCallBeforeBuildIsRefusedByName) {
  one_rank({}, [](Engine& engine, Rank&) {
    const GroupId id = engine.add_group(group_of("w", {3}));
    EXPECT_TRUE(contains(usage_error([&] { static_cast<void>(engine.gather(id)); }),
                         {"gather before build()"}));
    EXPECT_TRUE(contains(usage_error([&] { static_cast<void>(engine.begin_micro_step()); }),
                         {"begin_micro_step before build()"}));
    EXPECT_TRUE(contains(usage_error([&] { engine.step({}); }), {"step before build()"}));
    EXPECT_TRUE(contains(usage_error([&] { engine.reset(); }), {"reset before build()"}));
    EXPECT_TRUE(contains(usage_error([&] { static_cast<void>(engine.weights_checksum()); }),
                         {"weights_checksum before build()"}));
  });
}

// A step's life

TEST(Engine, AModelWithoutParametersSteps) {
  for (const int world_size : {1, 2}) {
    run_ranks(world_size, [](Rank& rank) {
      Engine engine(*rank.device, *rank.communicator, {});
      engine.build();
      static_cast<void>(engine.begin_micro_step());
      const StepResult result = engine.step({.learning_rate = 0.1});
      EXPECT_TRUE(result.applied);
      EXPECT_EQ(result.grad_norm, 0.0);
    });
  }
}

TEST(Engine, StepCountsMicroSteps) {
  one_rank({.micro_steps = 2}, [](Engine& engine, Rank&) {
    const GroupId id = engine.add_group(group_of("w", {3}));
    engine.build();
    EXPECT_TRUE(contains(usage_error([&] { engine.step({}); }), {"after 0 of 2 micro-steps"}));
    micro_step_of(engine, {{id, 1.0F}});
    EXPECT_TRUE(contains(usage_error([&] { engine.step({}); }), {"after 1 of 2 micro-steps"}));
    micro_step_of(engine, {{id, 1.0F}});
    EXPECT_TRUE(contains(usage_error([&] { static_cast<void>(engine.begin_micro_step()); }),
                         {"micro-step 3", "with 2", "EngineOptions::micro_steps"}));
    EXPECT_TRUE(engine.step({}).applied);
  });
}

TEST(Engine, PassesDoNotNest) {
  one_rank({}, [](Engine& engine, Rank&) {
    engine.add_group(group_of("w", {3}));
    engine.build();
    {
      const InferencePass pass = engine.begin_inference();
      EXPECT_TRUE(contains(usage_error([&] { static_cast<void>(engine.begin_micro_step()); }),
                           {"another pass is open"}));
    }
    const MicroStep scope = engine.begin_micro_step();
    EXPECT_TRUE(contains(usage_error([&] { static_cast<void>(engine.begin_micro_step()); }),
                         {"another pass is open"}));
    EXPECT_TRUE(contains(usage_error([&] { static_cast<void>(engine.begin_inference()); }),
                         {"another pass is open"}));
    EXPECT_TRUE(contains(usage_error([&] { engine.step({}); }), {"a pass is open"}));
  });
}

TEST(Engine, StepOptionsThatMakeNoSenseAreRefusedBeforeAnythingChanges) {
  one_rank({}, [](Engine& engine, Rank&) {
    const GroupId id = engine.add_group(group_of("w", {3}));
    engine.build();
    micro_step_of(engine, {{id, 1.0F}});
    const double nan = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(
        contains(usage_error([&] { engine.step({.learning_rate = nan}); }), {"learning rate nan"}));
    for (const double divisor : {0.0, -1.0, nan}) {
      EXPECT_TRUE(contains(usage_error([&] { engine.step({.divisor = divisor}); }),
                           {"the divisor", "positive"}));
    }
    EXPECT_TRUE(engine.step({.learning_rate = 0.1}).applied);
  });
}

// A10: unequal tokens per rank and micro-step.
TEST(Engine, TheDivisorIsAppliedOnceReportedOrGiven) {
  const auto weight = [](bool given) {
    float result = 0;
    run_ranks(2, [&](Rank& rank) {
      Engine engine(*rank.device, *rank.communicator,
                    {.optimizer = OptimizerKind::kSgd, .micro_steps = 2});
      const GroupId id = engine.add_group(group_of("w", {10}, Init::zeros()));
      engine.build();
      const Buffer loss(Elements(1), DType::kF64, MemoryTag::kActivations, engine.compute());
      fill_zero(loss.view(), engine.compute());
      // Tokens 1, 2, 3 and 10, each with the gradient 1.
      for (int m = 0; m < 2; ++m) {
        const std::int64_t tokens = m == 1 && rank.rank == 1 ? 10 : m * 2 + rank.rank + 1;
        MicroStep scope = engine.begin_micro_step();
        add_gradient(engine, engine.grads(id)[0],
                     [tokens](std::int64_t) { return static_cast<float>(tokens); });
        if (!given) scope.report(loss.view(), tokens);
      }
      const std::optional<double> divisor =
          given ? std::optional<double>(32.0) : std::optional<double>();
      engine.step({.learning_rate = 1.0, .divisor = divisor});
      const std::vector<float> w = engine.read_parameter("w");
      if (rank.rank == 0) result = w[9];
    });
    return result;
  };
  EXPECT_FLOAT_EQ(weight(false), -1.0F);
  EXPECT_EQ(weight(true), -0.5F);
}

TEST(Engine, WithoutReportsTheDivisorIsOne) {
  one_rank({.optimizer = OptimizerKind::kSgd}, [](Engine& engine, Rank&) {
    const GroupId id = engine.add_group(group_of("w", {2}, Init::zeros()));
    engine.build();
    micro_step_of(engine, {{id, 3.0F}});
    engine.step({.learning_rate = 1.0});
    EXPECT_EQ(engine.read_parameter("w"), std::vector<float>(2, -3.0F));
  });
}

TEST(Engine, TheLossScaleIsDividedOut) {
  one_rank({.optimizer = OptimizerKind::kSgd, .loss_scale = 1024}, [](Engine& engine, Rank&) {
    const GroupId id = engine.add_group(group_of("w", {2}, Init::zeros()));
    engine.build();
    micro_step_of(engine, {{id, 3.0F * 1024}});
    engine.step({.learning_rate = 1.0});
    EXPECT_EQ(engine.read_parameter("w"), std::vector<float>(2, -3.0F));
  });
}

}  // namespace
}  // namespace zero3::test
