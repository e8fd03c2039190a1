#include "grad_reducer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <zero3/faulty_communicator.h>
#include "support/contains.h"
#include "support/engine_ops.h"
#include "support/gradient_sums.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

// B1: embedding and head.
TEST(GradReducer, ATiedTableIsReducedOnceWithBothUsesInIt) {
  run_ranks(4, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, sums_options());
    const GroupId id = engine.add_group(group_of("table", {7, 4}, Init::zeros(), 2));
    engine.build();
    MicroStep scope = engine.begin_micro_step();
    add_gradient(engine, engine.grads(id)[0], [](std::int64_t) { return 1.0F; });
    EXPECT_EQ(reductions(engine), 0);
    add_gradient(engine, engine.grads(id)[0], [](std::int64_t i) { return static_cast<float>(i); });
    EXPECT_EQ(reductions(engine), 1);
    scope.end();
    step(engine, 4);
    std::vector<float> want(28);
    for (std::size_t i = 0; i < want.size(); ++i) want[i] = -1.0F - static_cast<float>(i);
    EXPECT_EQ(engine.read_parameter("table"), want);
  });
}

TEST(GradReducer, TheReductionWaitsForTheHandleThatEndsLast) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, sums_options());
    const GroupId id = engine.add_group(group_of("table", {8}, Init::zeros(), 2));
    engine.build();
    MicroStep scope = engine.begin_micro_step();
    {
      const Gradients outer = engine.grads(id);
      { const Gradients inner = engine.grads(id); }
      EXPECT_EQ(reductions(engine), 0);
      add_gradient(engine, outer[0], [](std::int64_t) { return 3.0F; });
    }
    EXPECT_EQ(reductions(engine), 1);
    scope.end();
    step(engine, 2);
    EXPECT_EQ(engine.read_parameter("table"), std::vector<float>(8, -3.0F));
  });
}

TEST(GradReducer, FewerUsesThanDeclaredAreReducedAtTheEndOfTheMicroStep) {
  for (const int world_size : {1, 2}) {
    run_ranks(world_size, [&](Rank& rank) {
      Engine engine(*rank.device, *rank.communicator, sums_options(2));
      const GroupId id = engine.add_group(group_of("table", {8}, Init::zeros(), 3));
      engine.build();
      micro_step_of(engine, {{id, 2.0F}});
      micro_step_of(engine, {{id, 1.0F}, {id, 1.0F}});
      EXPECT_EQ(reductions(engine), 2);
      step(engine, world_size);
      EXPECT_EQ(engine.read_parameter("table"), std::vector<float>(8, -4.0F));
    });
  }
}

TEST(GradReducer, MoreUsesThanDeclaredAreRefused) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, sums_options());
    const GroupId id = engine.add_group(group_of("wte", {8}, Init::zeros()));
    engine.build();
    MicroStep scope = engine.begin_micro_step();
    { const Gradients only = engine.grads(id); }
    EXPECT_TRUE(
        contains(message_of<UsageError>([&] { static_cast<void>(engine.grads(id)); }),
                 {"'wte'", "rank " + std::to_string(rank.rank), "more than 1 times", "uses = 2"}));
  });
}

TEST(GradReducer, GradientsOutsideOfAMicroStepAreRefused) {
  run_ranks(1, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, sums_options());
    const GroupId id = engine.add_group(group_of("wte", {8}));
    engine.build();
    EXPECT_TRUE(contains(message_of<UsageError>([&] { static_cast<void>(engine.grads(id)); }),
                         {"'wte'", "outside of a micro-step", "begin_micro_step()"}));
  });
}

TEST(GradReducer, GradientsHeldBeyondTheMicroStepAreAnError) {
  run_ranks(1, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, sums_options());
    const GroupId id = engine.add_group(group_of("wte", {8}));
    engine.build();
    MicroStep scope = engine.begin_micro_step();
    std::optional<Gradients> held = engine.grads(id);
    EXPECT_TRUE(contains(message_of<UsageError>([&] { scope.end(); }),
                         {"'wte'", "rank 0", "beyond the end of the micro-step", "let go"}));
    held.reset();
    EXPECT_TRUE(contains(message_of<UsageError>([&] { engine.step({.learning_rate = 1.0}); }),
                         {"reset()"}));
    engine.reset();
    micro_step_of(engine, {{id, 1.0F}});
    step(engine);
  });
}

TEST(GradReducer, AViewKeptPastTheReductionIsCaught) {
  for (const int world_size : {1, 2}) {
    run_ranks(world_size, [](Rank& rank) {
      Engine engine(*rank.device, *rank.communicator, sums_options());
      const GroupId id = engine.add_group(group_of("w", {8}));
      engine.build();
      MicroStep scope = engine.begin_micro_step();
      TensorView kept;
      {
        const Gradients grads = engine.grads(id);
        kept = grads[0];
        EXPECT_TRUE(kept.alive());
      }
      EXPECT_FALSE(kept.alive());
    });
  }
}

TEST(GradReducer, AFrozenParameterHasNoGradientAndDoesNotMove) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, sums_options());
    const GroupId id = engine.add_group(
        {.name = "g",
         .params = {{.name = "frozen", .shape = {9}, .init = Init::ones(), .trainable = false},
                    {.name = "w", .shape = {9}, .init = Init::ones()}}});
    const GroupId all_frozen = engine.add_group(
        {.name = "f", .params = {{.name = "f", .shape = {9}, .trainable = false}}});
    engine.build();
    MicroStep scope = engine.begin_micro_step();
    {
      const Gradients grads = engine.grads(id);
      EXPECT_TRUE(grads[0].empty());
      add_gradient(engine, grads[1], [](std::int64_t) { return 1.0F; });
      EXPECT_TRUE(engine.grads(all_frozen)[0].empty());
    }
    scope.end();
    EXPECT_EQ(reductions(engine), 1);
    step(engine);
    EXPECT_EQ(engine.read_parameter("frozen"), std::vector<float>(9, 1.0F));
    EXPECT_EQ(engine.read_parameter("w"), std::vector<float>(9, -1.0F));
  });
}

// B3, alone and mixed.
TEST(GradReducer, ParametersWithoutElementsTakePartInEverything) {
  for (const int world_size : {1, 2, 3}) {
    run_ranks(world_size, [](Rank& rank) {
      Engine engine(*rank.device, *rank.communicator, {.micro_steps = 2});
      const GroupId none = engine.add_group(group_of("none", {0, 4}));
      const GroupId mixed =
          engine.add_group({.name = "mixed",
                            .params = {{.name = "front", .shape = {0}},
                                       {.name = "a", .shape = {5}, .init = Init::ones()},
                                       {.name = "inside", .shape = {0}},
                                       {.name = "b", .shape = {3}, .init = Init::ones()},
                                       {.name = "end", .shape = {2, 0}}}});
      engine.build();
      for (int i = 0; i < 2; ++i) {
        MicroStep scope = engine.begin_micro_step();
        EXPECT_EQ(engine.gather(none)[0].count(), 0);
        {
          const Gradients grads = engine.grads(mixed);
          EXPECT_EQ(grads[2].count(), 0);
          for (const int param : {1, 3})
            add_gradient(engine, grads[param], [](std::int64_t) { return 1.0F; });
        }
        EXPECT_EQ(engine.grads(none)[0].count(), 0);
      }
      EXPECT_TRUE(engine.step({.learning_rate = 0.5}).applied);
      for (const float w : engine.read_parameter("b")) EXPECT_NEAR(w, 0.5F, 1e-6F);
      EXPECT_TRUE(engine.read_parameter("inside").empty());
    });
  }
}

// C1: a missing gradient is zero.
TEST(GradReducer, ARankWithoutAGradientCountsAsZero) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, sums_options());
    const GroupId a = engine.add_group(group_of("a", {3000}, Init::zeros()));
    const GroupId b = engine.add_group(group_of("b", {3000}, Init::zeros()));
    engine.build();
    {
      const MicroStep scope = engine.begin_micro_step();
      for (const GroupId id : {a, b}) static_cast<void>(engine.gather(id));
      if (rank.rank == 1)
        add_gradient(engine, engine.grads(b)[0], [](std::int64_t) { return 5.0F; });
      add_gradient(engine, engine.grads(a)[0], [](std::int64_t) { return 1.0F; });
    }
    step(engine, 2);
    EXPECT_EQ(engine.read_parameter("a"), std::vector<float>(3000, -1.0F));
    EXPECT_EQ(engine.read_parameter("b"), std::vector<float>(3000, -2.5F));
  });
}

// C1: whatever each rank leaves out, all reduce in one order.
TEST(GradReducer, RanksThatLeaveOutDifferentGroupsFinish) {
  for (const auto policy : {Accumulation::kReduceEachMicroStep, Accumulation::kKeepFull}) {
    run_ranks(3, [&](Rank& rank) {
      EngineOptions options = sums_options(4);
      options.accumulation = policy;
      Engine engine(*rank.device, *rank.communicator, options);
      std::vector<GroupId> groups;
      for (int i = 0; i < 4; ++i)
        groups.push_back(
            engine.add_group(group_of("g" + std::to_string(i), {2000}, Init::zeros())));
      engine.build();
      // In micro-step m rank r leaves out group (m + r) mod 4.
      for (int m = 0; m < 4; ++m) {
        std::vector<std::pair<GroupId, float>> used;
        for (int g = 3; g >= 0; --g) {
          if (g != (m + rank.rank) % 4)
            used.push_back({groups[static_cast<std::size_t>(g)], static_cast<float>(g + 1)});
        }
        micro_step_of(engine, used);
      }
      step(engine);
      for (int g = 0; g < 4; ++g) {
        EXPECT_EQ(engine.read_parameter("g" + std::to_string(g)),
                  std::vector<float>(2000, -9.0F * static_cast<float>(g + 1)));
      }
    });
  }
}

TEST(GradReducer, LeavingOutGroupsTakesNoMoreSlots) {
  const auto peak = [](bool leave_out) {
    Bytes bytes;
    run_ranks(2, [&](Rank& rank) {
      EngineOptions options = sums_options();
      options.grad_slots = 1;
      Engine engine(*rank.device, *rank.communicator, options);
      std::vector<GroupId> groups;
      for (int i = 0; i < 5; ++i)
        groups.push_back(engine.add_group(group_of("g" + std::to_string(i), {2000})));
      engine.build();
      std::vector<std::pair<GroupId, float>> used;
      for (std::size_t g = 5; g-- > 0;) {
        if (!leave_out || g % 2 != 0) used.push_back({groups[g], 1.0F});
      }
      micro_step_of(engine, used);
      if (rank.rank == 0) bytes = rank.device->stats().peak()[MemoryTag::kGrads];
    });
    return bytes;
  };
  EXPECT_EQ(peak(true), peak(false));
}

TEST(GradReducer, AnotherOrderThanExpectedIsRefusedWithWhatToDeclare) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, sums_options());
    const GroupId a = engine.add_group(group_of("a", {8}));
    const GroupId b = engine.add_group(group_of("b", {8}));
    engine.build();
    MicroStep scope = engine.begin_micro_step();
    { const Gradients first = engine.grads(a); }
    EXPECT_TRUE(contains(message_of<UsageError>([&] { static_cast<void>(engine.grads(b)); }),
                         {"'b'", "rank " + std::to_string(rank.rank), "after those of 'a'",
                          "expected later", "Engine::expect_order()"}));
  });
}

TEST(GradReducer, ADeclaredOrderIsFollowed) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, sums_options());
    const GroupId a = engine.add_group(group_of("a", {8}, Init::zeros()));
    const GroupId b = engine.add_group(group_of("b", {8}, Init::zeros()));
    engine.expect_order({a, b}, {a, b});
    engine.build();
    micro_step_of(engine, {{a, 1.0F}, {b, 2.0F}});
    step(engine);
    EXPECT_EQ(engine.read_parameter("a"), std::vector<float>(8, -2.0F));
    EXPECT_EQ(engine.read_parameter("b"), std::vector<float>(8, -4.0F));
  });
}

// G4
TEST(GradReducer, AGroupThatIsNotUsedKeepsNoOldGradient) {
  for (const int world_size : {1, 2}) {
    for (const auto policy : {Accumulation::kReduceEachMicroStep, Accumulation::kKeepFull}) {
      run_ranks(world_size, [&](Rank& rank) {
        EngineOptions options = sums_options(2);
        options.accumulation = policy;
        Engine engine(*rank.device, *rank.communicator, options);
        const GroupId a = engine.add_group(group_of("a", {10}, Init::zeros()));
        const GroupId b = engine.add_group(group_of("b", {10}, Init::zeros()));
        engine.build();
        const float infinity = std::numeric_limits<float>::infinity();
        for (int i = 0; i < 2; ++i) micro_step_of(engine, {{b, infinity}, {a, 1.0F}});
        EXPECT_FALSE(engine.step({.learning_rate = 1.0}).applied);
        for (int i = 0; i < 2; ++i) micro_step_of(engine, {{a, 1.0F}});
        const StepResult result = engine.step({.learning_rate = 1.0, .divisor = 1.0});
        EXPECT_TRUE(result.applied) << result.reason;
        EXPECT_EQ(engine.read_parameter("b"), std::vector<float>(10, 0.0F));
      });
    }
  }
}

// D3: reductions that take their time, with few slots.
TEST(GradReducer, EveryGradientSurvivesInFewSlots) {
  for (const int slots : {1, 2, 3}) {
    run_ranks(2, [&](Rank& rank) {
      std::vector<Fault> delays;
      std::mt19937 random(static_cast<unsigned>(slots));
      for (int i = 0; i < 12; ++i)
        delays.push_back({.kind = Fault::Kind::kDelay,
                          .at = i,
                          .op = CollectiveOp::kReduceScatter,
                          .delay = std::chrono::milliseconds(random() % 8)});
      FaultyCommunicator slow(std::move(rank.communicator), delays);
      EngineOptions options = sums_options(2);
      options.grad_slots = slots;
      Engine engine(*rank.device, slow, options);
      std::vector<GroupId> groups;
      for (int i = 0; i < 6; ++i)
        groups.push_back(
            engine.add_group(group_of("g" + std::to_string(i), {2000}, Init::zeros())));
      engine.build();
      for (int m = 0; m < 2; ++m) {
        MicroStep scope = engine.begin_micro_step();
        for (std::size_t i = groups.size(); i-- > 0;) {
          add_gradient(engine, engine.grads(groups[i])[0], [i, m](std::int64_t e) {
            return static_cast<float>(static_cast<std::int64_t>(i) * 100000 + e + m);
          });
        }
      }
      step(engine);
      for (std::size_t i = 0; i < groups.size(); ++i) {
        std::vector<float> want(2000);
        for (std::size_t e = 0; e < want.size(); ++e)
          want[e] = -static_cast<float>(i * 400000 + e * 4 + 2);
        EXPECT_EQ(engine.read_parameter("g" + std::to_string(i)), want) << "group " << i;
      }
    });
  }
}

// A slot that is opened again while its last reduction is still counted.
TEST(GradReducer, ATiedSlotSurvivesOthersThatAreRetiredAfterIt) {
  for (const int slots : {1, 2, 3, 4}) {
    run_ranks(2, [&](Rank& rank) {
      EngineOptions options = sums_options(3);
      options.grad_slots = slots;
      Engine engine(*rank.device, *rank.communicator, options);
      const GroupId tied = engine.add_group(group_of("tied", {100}, Init::zeros(), 2));
      std::vector<GroupId> others;
      for (int i = 0; i < 3; ++i)
        others.push_back(engine.add_group(group_of("g" + std::to_string(i), {100}, Init::zeros())));
      engine.expect_order({}, {tied, others[0], others[1], others[2], tied});
      engine.build();
      for (int m = 0; m < 3; ++m) {
        micro_step_of(
            engine,
            {{tied, 1.0F}, {others[0], 2.0F}, {others[1], 3.0F}, {others[2], 4.0F}, {tied, 5.0F}});
      }
      step(engine, 6);
      EXPECT_EQ(engine.read_parameter("tied"), std::vector<float>(100, -6.0F)) << slots;
      EXPECT_EQ(engine.read_parameter("g0"), std::vector<float>(100, -2.0F)) << slots;
    });
  }
}

TEST(GradReducer, EndingAMicroStepByItsScopeReportsErrorsInTheStep) {
  run_ranks(1, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, sums_options());
    const GroupId id = engine.add_group(group_of("wte", {8}));
    engine.build();
    std::optional<Gradients> held;
    {
      const MicroStep scope = engine.begin_micro_step();
      held.emplace(engine.grads(id));
    }
    held.reset();
    EXPECT_TRUE(contains(message_of<UsageError>([&] { engine.step({.learning_rate = 1.0}); }),
                         {"'wte'", "beyond the end of the micro-step"}));
  });
}

}  // namespace
}  // namespace zero3::test
