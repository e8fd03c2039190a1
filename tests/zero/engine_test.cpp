#include <zero3/engine.h>

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <stdexcept>
#include <vector>

#include "support/contains.h"
#include "support/engine_ops.h"
#include "support/run_ranks.h"
#include "support/toy_model.h"

namespace zero3::test {
namespace {

void one_rank(const EngineOptions& options, const std::function<void(Engine&, Rank&)>& test) {
  run_ranks(1, [&](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, options);
    test(engine, rank);
  });
}

template <class Call>
std::string usage_error(Call&& call) {
  return message_of<UsageError>(std::forward<Call>(call));
}

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

// Whole parameters

TEST(Engine, AWrittenParameterIsReadBack) {
  run_ranks(3, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.keep_gathered_below = Elements(9999)});
    const GroupId id = engine.add_group(group_of("w", {4000}, Init::ones()));
    engine.build();
    EXPECT_EQ(values_of(engine, engine.gather(id)[0])[3999], 1.0F);
    std::vector<float> values(4000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    engine.write_parameter("w", values);
    EXPECT_EQ(engine.read_parameter("w"), values);
    EXPECT_EQ(values_of(engine, engine.gather(id)[0]), values);
  });
}

TEST(Engine, ParametersAreAskedForByNameSizeAndTime) {
  one_rank({.micro_steps = 2}, [](Engine& engine, Rank&) {
    const GroupId id = engine.add_group(group_of("w", {3}));
    engine.build();
    EXPECT_TRUE(contains(usage_error([&] { static_cast<void>(engine.read_parameter("v")); }),
                         {"no parameter 'v'"}));
    const std::vector<float> two(2), three(3);
    EXPECT_TRUE(contains(usage_error([&] { engine.write_parameter("w", two); }),
                         {"'w'", "3 elements", "not 2"}));
    {
      const Gathered held = engine.gather(id);
      EXPECT_TRUE(contains(usage_error([&] { engine.write_parameter("w", three); }),
                           {"write_parameter", "group 'w' is gathered"}));
    }
    micro_step_of(engine, {{id, 1.0F}});
    EXPECT_TRUE(contains(usage_error([&] { engine.write_parameter("w", three); }),
                         {"'w'", "within a step"}));
  });
}

std::uint64_t checksum_of(int world_size, const std::vector<float>& values) {
  std::uint64_t sum = 0;
  run_ranks(world_size, [&](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    engine.add_group(group_of("first", {1000}, Init::ones()));
    GroupSpec spec = group_of("w", {static_cast<std::int64_t>(values.size())});
    spec.params.push_back({.name = "frozen", .shape = {10}, .trainable = false});
    engine.add_group(spec);
    engine.build();
    engine.write_parameter("w", values);
    const std::uint64_t own = engine.weights_checksum();
    EXPECT_EQ(
        engine.gather_values(std::vector<double>{static_cast<double>(own >> 32)}, "all"),
        std::vector<double>(static_cast<std::size_t>(world_size), static_cast<double>(own >> 32)));
    if (rank.rank == 0) sum = own;
  });
  return sum;
}

TEST(Engine, TheChecksumDoesNotDependOnTheWorldSize) {
  const std::vector<float> values(5000, 0.25F);
  for (const int world_size : {2, 3, 4}) {
    EXPECT_EQ(checksum_of(world_size, values), checksum_of(1, values));
  }
}

TEST(Engine, TheChecksumSeesOneBitAndOnePlace) {
  const std::vector<float> values(5000, 0.25F);
  std::vector<float> changed = values, moved = values;
  changed[4999] = 0.25F + 0x1p-24F;
  moved[1] = 0.5F;
  std::vector<float> moved_on = values;
  moved_on[2] = 0.5F;
  EXPECT_NE(checksum_of(2, values), checksum_of(2, changed));
  EXPECT_NE(checksum_of(2, moved), checksum_of(2, moved_on));
}

// F1: what every rank gathers is the same after every step.
TEST(Engine, ReplicasAgreeAfterEveryStep) {
  run_ranks(3, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.precision = {.param = DType::kBF16}});
    const GroupId id = engine.add_group(group_of("w", {4099}));
    engine.build();
    for (int step = 0; step < 4; ++step) {
      const std::vector<float> values = values_of(engine, engine.gather(id)[0]);
      double hash = 0;
      for (std::size_t i = 0; i < values.size(); ++i)
        hash += static_cast<double>(values[i]) * static_cast<double>(i % 127 + 1);
      EXPECT_EQ(engine.gather_values({&hash, 1}, "replicas"), std::vector<double>(3, hash));
      micro_step_of(engine, {{id, static_cast<float>(rank.rank) + 0.5F}});
      engine.step({.learning_rate = 0.1});
    }
  });
}

// D8: what a step moves.
TEST(Engine, CountsAndBytesOfAStepAreThoseOfTheFormula) {
  run_ranks(2, [](Rank& rank) {
    EngineOptions options{.precision = {.param = DType::kBF16, .reduce = DType::kF32},
                          .micro_steps = 3};
    Engine engine(*rank.device, *rank.communicator, options);
    std::vector<GroupId> groups;
    for (int i = 0; i < 4; ++i)
      groups.push_back(engine.add_group(group_of("g" + std::to_string(i), {5000})));
    engine.build();
    const CommCounters before = engine.comm_counters();
    for (int m = 0; m < 3; ++m) {
      const MicroStep scope = engine.begin_micro_step();
      for (const GroupId id : groups) static_cast<void>(engine.gather(id));
      for (std::size_t i = 4; i-- > 0;) {
        static_cast<void>(engine.gather(groups[i]));
        static_cast<void>(engine.grads(groups[i]));
      }
    }
    engine.step({.learning_rate = 0.1});
    const CommCounters after = engine.comm_counters();
    const auto added = [&](CollectiveOp op) {
      return CommCounters::Entry{after[op].count - before[op].count,
                                 after[op].bytes - before[op].bytes};
    };
    // Shards of 3072 elements. The norm's report: tokens, 3 losses, 4 uses and 3 blocks of each
    // group, or the least that other exchanges need.
    const std::int64_t report = 8 + 64;
    EXPECT_EQ(added(CollectiveOp::kAllGather).count, 3 * 8 + 1);
    EXPECT_EQ(added(CollectiveOp::kAllGather).bytes, Bytes(3 * 8 * 3072 * 2 + report * 8));
    EXPECT_EQ(added(CollectiveOp::kReduceScatter).count, 3 * 4);
    EXPECT_EQ(added(CollectiveOp::kReduceScatter).bytes, Bytes(3 * 4 * 3072 * 4));
    for (const CollectiveOp op : {CollectiveOp::kAllReduce, CollectiveOp::kAllToAll,
                                  CollectiveOp::kBroadcast, CollectiveOp::kBarrier}) {
      EXPECT_EQ(added(op).count, 0) << name_of(op);
    }
  });
}

// reset() and exceptions

struct Interruption : std::runtime_error {
  Interruption() : std::runtime_error("the user's own") {}
};

/// A layer that throws while `*countdown` calls of it remain 0.
class ThrowingLayer final : public Layer {
 public:
  ThrowingLayer(std::unique_ptr<Layer> inner, int& countdown)
      : inner_(std::move(inner)), countdown_(countdown) {}
  [[nodiscard]] GroupSpec group() const override { return inner_->group(); }
  [[nodiscard]] LayerMemory memory(TokenShape tokens) const override {
    return inner_->memory(tokens);
  }
  void forward(const LayerContext& context, const Gathered& weights, TensorView in, TensorView out,
               TensorView saved, Pass pass) override {
    inner_->forward(context, weights, in, out, saved, pass);
    if (countdown_-- == 0) throw Interruption();
  }
  void backward(const LayerContext& context, const Gathered& weights, const Gradients& grads,
                TensorView in, TensorView saved, TensorView gradient) override {
    inner_->backward(context, weights, grads, in, saved, gradient);
    if (countdown_-- == 0) throw Interruption();
  }

 private:
  std::unique_ptr<Layer> inner_;
  int& countdown_;
};

/// The weights' checksum after steps 0, 1, 2, where step 1 is first begun and interrupted at the
/// `interrupt`-th call of a layer (none if negative).
std::uint64_t interrupted(int world_size, int interrupt, const EngineOptions& options) {
  std::uint64_t result = 0;
  const toy::Shape shape{.width = 6, .hidden = 7, .rows = 3, .layers = 3};
  run_ranks(world_size, [&](Rank& rank) {
    int countdown = -1;
    Engine engine(*rank.device, *rank.communicator, options);
    std::vector<std::unique_ptr<Layer>> layers;
    for (std::size_t i = 0; i < shape.layers; ++i) {
      layers.push_back(
          std::make_unique<ThrowingLayer>(std::make_unique<toy::ToyLayer>(shape, i), countdown));
    }
    LayerStack stack(engine, std::move(layers), {.width = 6, .tokens = {1, 3}});
    engine.build();
    stack.build(TensorView());
    const Buffer gradient(Elements(18), DType::kF32, MemoryTag::kActivations, engine.compute());
    const auto micro_step = [&](int step, int m) {
      const MicroStep scope = engine.begin_micro_step();
      const TensorView in = stack.input({1, 3});
      task(engine.compute(), "input", {in}, [x = host(in), step, m, r = rank.rank] {
        for (std::size_t i = 0; i < x.size(); ++i)
          x[i] = 0.1F * static_cast<float>(i) - 0.3F * static_cast<float>(step + m + r);
      });
      const TensorView out = stack.forward({1, 3}, Pass::kTraining);
      copy(gradient.view(), out, engine.compute());
      stack.backward(gradient.view());
    };
    for (int step = 0; step < 3; ++step) {
      if (step == 1 && interrupt >= 0) {
        countdown = interrupt;
        EXPECT_THROW(
            {
              for (int m = 0; m < options.micro_steps; ++m) micro_step(10, m);
            },
            Interruption);
        EXPECT_TRUE(contains(usage_error([&] { engine.step({.learning_rate = 0.1}); }),
                             {"step", "rank " + std::to_string(rank.rank), "reset()"}));
        engine.reset();
        countdown = -1;
      }
      for (int m = 0; m < options.micro_steps; ++m) micro_step(step, m);
      engine.step({.learning_rate = 0.1, .divisor = 3.0});
    }
    const std::uint64_t checksum = engine.weights_checksum();
    if (rank.rank == 0) result = checksum;
  });
  return result;
}

// C10: thrown anywhere in a forward or backward, on all ranks.
TEST(Engine, AStepAfterAResetEqualsOneInARunThatNeverThrew) {
  const EngineOptions variants[] = {
      {.micro_steps = 2},
      {.precision = {.param = DType::kBF16}, .micro_steps = 2, .prefetch = 2},
      {.micro_steps = 2, .accumulation = Accumulation::kKeepFull},
      {.micro_steps = 2, .keep_gathered_below = Elements(9999)}};
  for (const EngineOptions& options : variants) {
    for (const int world_size : {1, 2, 3}) {
      const std::uint64_t want = interrupted(world_size, -1, options);
      for (const int call : {0, 2, 3, 5, 7, 9, 11})
        EXPECT_EQ(interrupted(world_size, call, options), want) << world_size << ", " << call;
    }
  }
}

TEST(Engine, AnErrorOnTheComputeStreamComesOutOfTheStepAndIsGoneAfterAReset) {
  one_rank({.optimizer = OptimizerKind::kSgd}, [](Engine& engine, Rank&) {
    const GroupId id = engine.add_group(group_of("w", {100}, Init::ones()));
    engine.build();
    {
      const MicroStep scope = engine.begin_micro_step();
      const Gradients grads = engine.grads(id);
      engine.compute().call("layer", [] { throw Interruption(); });
    }
    EXPECT_EQ(message_of<Interruption>([&] { engine.step({.learning_rate = 1.0}); }),
              "the user's own");
    engine.reset();
    micro_step_of(engine, {{id, 1.0F}});
    EXPECT_TRUE(engine.step({.learning_rate = 1.0}).applied);
    EXPECT_EQ(engine.read_parameter("w"), std::vector<float>(100, 0.0F));
  });
}

TEST(Engine, HandlesFromBeforeAResetDoNothing) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.optimizer = OptimizerKind::kSgd});
    const GroupId id = engine.add_group(group_of("w", {100}, Init::ones()));
    engine.build();
    {
      const MicroStep scope = engine.begin_micro_step();
      const Gathered full = engine.gather(id);
      const Gradients grads = engine.grads(id);
      engine.reset();
      EXPECT_TRUE(
          contains(usage_error([&] { static_cast<void>(full[0]); }), {"'w'", "before reset()"}));
      EXPECT_TRUE(
          contains(usage_error([&] { static_cast<void>(grads[0]); }), {"'w'", "before reset()"}));
      const Gathered fresh = engine.gather(id);
    }
    micro_step_of(engine, {{id, 1.0F}});
    engine.step({.learning_rate = 1.0, .divisor = 2.0});
    EXPECT_EQ(engine.read_parameter("w"), std::vector<float>(100, 0.0F));
  });
}

TEST(Engine, AResetInTheMiddleOfAnInferencePassEndsIt) {
  one_rank({}, [](Engine& engine, Rank&) {
    const GroupId id = engine.add_group(group_of("w", {100}));
    engine.build();
    {
      const InferencePass pass = engine.begin_inference();
      engine.reset();
    }
    micro_step_of(engine, {{id, 1.0F}});
    EXPECT_TRUE(engine.step({.learning_rate = 1.0}).applied);
  });
}

// C12
TEST(Engine, AnEvaluationBetweenStepsChangesNothing) {
  for (const int world_size : {1, 2}) {
    std::vector<std::uint64_t> checksums;
    for (const bool evaluates : {false, true}) {
      run_ranks(world_size, [&](Rank& rank) {
        Engine engine(*rank.device, *rank.communicator, {.keep_gathered_below = Elements(500)});
        toy::ToyModel model(engine, {});
        engine.build();
        model.build();
        for (int step = 0; step < 3; ++step) {
          MicroStep scope = engine.begin_micro_step();
          model.train(scope, step, rank.rank);
          scope.end();
          engine.step({.learning_rate = 0.01});
          if (evaluates) static_cast<void>(model.evaluate(step, 5));
        }
        const std::uint64_t checksum = engine.weights_checksum();
        if (rank.rank == 0) checksums.push_back(checksum);
      });
    }
    EXPECT_EQ(checksums[0], checksums[1]);
  }
}

// Several engines, and their ends

TEST(Engine, TwoEnginesOnOneDeviceDoNotDisturbEachOther) {
  run_ranks(2, [](Rank& rank) {
    const auto second = rank.communicator->duplicate(*rank.stream);
    Engine a(*rank.device, *rank.communicator, {.optimizer = OptimizerKind::kSgd});
    Engine b(*rank.device, *second, {.optimizer = OptimizerKind::kSgd});
    const GroupId in_a = a.add_group(group_of("w", {3000}, Init::zeros()));
    const GroupId in_b = b.add_group(group_of("w", {3000}, Init::ones()));
    a.build();
    b.build();
    for (int step = 0; step < 3; ++step) {
      {
        const MicroStep scope_a = a.begin_micro_step();
        const MicroStep scope_b = b.begin_micro_step();
        const Gradients grads_a = a.grads(in_a);
        const Gradients grads_b = b.grads(in_b);
        add_gradient(a, grads_a[0], [](std::int64_t) { return 1.0F; });
        add_gradient(b, grads_b[0], [](std::int64_t) { return 2.0F; });
      }
      a.step({.learning_rate = 1.0, .divisor = 2.0});
      b.step({.learning_rate = 1.0, .divisor = 2.0});
    }
    EXPECT_EQ(a.read_parameter("w"), std::vector<float>(3000, -3.0F));
    EXPECT_EQ(b.read_parameter("w"), std::vector<float>(3000, -5.0F));
  });
}

// D9
TEST(Engine, CreatedAndDestroyedTwentyTimesEveryByteIsReturned) {
  for (const int world_size : {1, 2}) {
    run_ranks(world_size, [](Rank& rank) {
      std::vector<Bytes> reserved;
      for (int round = 0; round < 20; ++round) {
        {
          Engine engine(*rank.device, *rank.communicator,
                        {.precision = {.param = DType::kBF16}, .micro_steps = 2});
          toy::ToyModel model(engine, {});
          engine.build();
          model.build();
          static_cast<void>(toy::train(engine, model, 1));
        }
        EXPECT_EQ(rank.device->stats().in_use(), MemoryByTag());
        rank.device->pool().trim();
        EXPECT_EQ(rank.device->pool().reserved(), Bytes(0));
      }
    });
  }
}

TEST(Engine, DestroyedInTheMiddleOfAStepEveryByteIsReturned) {
  run_ranks(2, [](Rank& rank) {
    {
      Engine engine(*rank.device, *rank.communicator, {.micro_steps = 2, .prefetch = 2});
      toy::ToyModel model(engine, {});
      engine.build();
      model.build();
      MicroStep scope = engine.begin_micro_step();
      model.train(scope, 0, 0);
    }
    EXPECT_EQ(rank.device->stats().in_use(), MemoryByTag());
    rank.device->pool().trim();
    EXPECT_EQ(rank.device->pool().reserved(), Bytes(0));
  });
}

TEST(Engine, ABuildWithoutRoomSaysWhatIsInUse) {
  run_ranks(1, [](Rank& rank) {
    rank.device->limit().set_limit(Bytes(100000));
    Engine engine(*rank.device, *rank.communicator, {});
    engine.add_group(group_of("w", {10000}));
    EXPECT_TRUE(contains(message_of<OutOfMemoryError>([&] { engine.build(); }),
                         {"out of memory", "shards", "grads", "limit"}));
  });
}

}  // namespace
}  // namespace zero3::test
