#include <zero3/engine.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/contains.h"
#include "support/engine_ops.h"
#include "support/run_ranks.h"
#include "support/toy_model.h"

namespace zero3::test {
namespace {

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
