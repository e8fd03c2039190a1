#include <zero3/layer_stack.h>

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "support/contains.h"
#include "support/engine_ops.h"
#include "support/run_ranks.h"
#include "support/toy_layers.h"
#include "support/toy_model.h"

namespace zero3::test {
namespace {

using toy::Shape;
using toy::ToyLayer;

std::vector<std::unique_ptr<Layer>> layers_of(const Shape& shape) {
  std::vector<std::unique_ptr<Layer>> layers;
  for (std::size_t i = 0; i < shape.layers; ++i)
    layers.push_back(std::make_unique<ToyLayer>(shape, i));
  return layers;
}

LayerStackOptions options_of(const Shape& shape, CheckpointMode mode = CheckpointMode::kNone) {
  return {.width = static_cast<std::int64_t>(shape.width),
          .tokens = {.batch = 1, .seq = static_cast<std::int64_t>(shape.rows)},
          .checkpoints = {.mode = mode, .directory = mode == CheckpointMode::kDisk ? "." : ""}};
}

/// A built engine and stack on one rank.
struct Fixture {
  Fixture(Rank& rank, const Shape& the_shape, CheckpointMode mode = CheckpointMode::kNone)
      : shape(the_shape),
        engine(*rank.device, *rank.communicator, {}),
        stack(engine, layers_of(shape), options_of(shape, mode)) {
    engine.build();
    stack.build(TensorView());
  }
  [[nodiscard]] TokenShape tokens(std::size_t rows) const {
    return {.batch = 1, .seq = static_cast<std::int64_t>(rows)};
  }
  void write_input(std::size_t rows) {
    const TensorView in = stack.input(tokens(rows));
    task(engine.compute(), "input", {in}, [x = host(in)] {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.01F * static_cast<float>(i % 91) - 0.4F;
    });
  }

  Shape shape;
  Engine engine;
  LayerStack stack;
};

constexpr Shape kShape{.width = 5, .hidden = 7, .rows = 6, .layers = 3};

/// Output and input gradient of the stack for `rows` rows, computed layer by layer on host memory.
struct Plain {
  Plain(Fixture& f, std::size_t rows) {
    std::vector<std::vector<float>> hidden(1, std::vector<float>(rows * f.shape.width)), saved;
    for (std::size_t i = 0; i < hidden[0].size(); ++i)
      hidden[0][i] = 0.01F * static_cast<float>(i % 91) - 0.4F;
    std::vector<std::vector<std::vector<float>>> p;
    for (std::size_t l = 0; l < f.shape.layers; ++l) {
      const std::string name = "layer." + std::to_string(l);
      p.emplace_back();
      for (const char* part : {".w1", ".bias", ".w2", ".scale", ".shift"})
        p[l].push_back(f.engine.read_parameter(name + part));
      hidden.emplace_back(hidden[0].size());
      saved.emplace_back(rows * (f.shape.hidden + f.shape.width));
      layer_forward(f.shape, {p[l][0], p[l][1], p[l][2], p[l][3], p[l][4]}, hidden[l],
                    hidden[l + 1], saved[l]);
    }
    out = hidden.back();
    gradient = out;
    for (std::size_t l = f.shape.layers; l-- > 0;) {
      auto g = p[l];
      for (auto& values : g) std::fill(values.begin(), values.end(), 0.0F);
      layer_backward(f.shape, {p[l][0], p[l][1], p[l][2], p[l][3], p[l][4]},
                     {g[0], g[1], g[2], g[3]}, hidden[l], saved[l], gradient);
    }
  }
  std::vector<float> out, gradient;
};

TEST(LayerStack, ForwardAndBackwardAreThoseOfItsLayers) {
  for (const CheckpointMode mode : kCheckpointModes) {
    run_ranks(1, [&](Rank& rank) {
      Fixture f(rank, kShape, mode);
      const Plain want(f, kShape.rows);
      const Buffer gradient(Elements(30), DType::kF32, MemoryTag::kActivations, f.engine.compute());
      const MicroStep scope = f.engine.begin_micro_step();
      f.write_input(kShape.rows);
      const TensorView out = f.stack.forward(f.tokens(kShape.rows), Pass::kTraining);
      EXPECT_EQ(values_of(f.engine, out), want.out);
      copy(gradient.view(), out, f.engine.compute());
      f.stack.backward(gradient.view());
      EXPECT_EQ(values_of(f.engine, gradient.view()), want.gradient);
    });
  }
}

TEST(LayerStack, ASmallerMicroBatchUsesTheFirstRows) {
  run_ranks(1, [](Rank& rank) {
    Fixture f(rank, kShape);
    for (const std::size_t rows : {1U, 0U, 4U}) {
      const Plain want(f, rows);
      f.write_input(rows);
      const InferencePass pass = f.engine.begin_inference();
      const TensorView out = f.stack.forward(f.tokens(rows), Pass::kInference);
      EXPECT_EQ(values_of(f.engine, out), want.out) << rows << " rows";
    }
  });
}

TEST(LayerStack, WithoutLayersTheOutputIsTheInput) {
  run_ranks(1, [](Rank& rank) {
    Fixture f(rank, {.width = 4, .hidden = 1, .rows = 2, .layers = 0});
    f.write_input(2);
    const TensorView in = f.stack.input(f.tokens(2));
    EXPECT_EQ(f.stack.forward(f.tokens(2), Pass::kTraining).data(), in.data());
    f.stack.backward(in);
  });
}

TEST(LayerStack, LargerMicroBatchesThanPlannedAreRefused) {
  run_ranks(1, [](Rank& rank) {
    Fixture f(rank, kShape);
    EXPECT_TRUE(contains(
        message_of<UsageError>([&] { static_cast<void>(f.stack.input({.batch = 2, .seq = 4})); }),
        {"2 x 4", "built for 1 x 6"}));
  });
}

TEST(LayerStack, ABackwardNeedsATrainingForward) {
  run_ranks(1, [](Rank& rank) {
    Fixture f(rank, kShape);
    const auto backward = [&] {
      return message_of<UsageError>([&] { f.stack.backward(TensorView()); });
    };
    EXPECT_TRUE(contains(backward(), {"without a training forward"}));
    f.write_input(6);
    static_cast<void>(f.stack.forward(f.tokens(6), Pass::kInference));
    EXPECT_TRUE(contains(backward(), {"without a training forward"}));
  });
}

TEST(LayerStack, IsUsedAfterItsBuildAlone) {
  run_ranks(1, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    LayerStack stack(engine, layers_of(kShape), options_of(kShape));
    engine.build();
    EXPECT_TRUE(contains(
        message_of<UsageError>([&] { static_cast<void>(stack.input({.batch = 1, .seq = 1})); }),
        {"before build()"}));
    EXPECT_TRUE(contains(message_of<UsageError>([&] { static_cast<void>(stack.gemm()); }),
                         {"before build()"}));
    stack.build(TensorView());
    EXPECT_TRUE(contains(message_of<UsageError>([&] { stack.build(TensorView()); }), {"twice"}));
    EXPECT_TRUE(contains(message_of<UsageError>([&] {
                           static_cast<void>(
                               stack.forward({.batch = 1, .seq = 1}, Pass::kRecompute));
                         }),
                         {"recompute"}));
  });
}

// D6
TEST(LayerStack, WithRecomputeALayerMoreCostsItsInputAlone) {
  const auto activations = [](std::size_t layers) {
    Bytes total;
    run_ranks(1, [&](Rank& rank) {
      const Fixture f(rank, {.width = 8, .hidden = 100, .rows = 16, .layers = layers},
                      CheckpointMode::kRecompute);
      const MemoryByTag peak = rank.device->stats().peak();
      EXPECT_EQ(peak[MemoryTag::kActivations], f.stack.plan()[MemoryTag::kActivations]);
      EXPECT_EQ(peak[MemoryTag::kCheckpoints], f.stack.plan()[MemoryTag::kCheckpoints]);
      total = peak[MemoryTag::kActivations] + peak[MemoryTag::kCheckpoints];
    });
    return total;
  };
  const Bytes input(8 * 16 * 4);
  EXPECT_EQ(activations(9) - activations(2), input * 7);
}

TEST(LayerStack, WithoutRecomputeALayerMoreCostsWhatItSavesToo) {
  const auto plan = [](std::size_t layers) {
    Bytes total;
    run_ranks(1, [&](Rank& rank) {
      const Fixture f(rank, {.width = 8, .hidden = 100, .rows = 16, .layers = layers});
      EXPECT_EQ(rank.device->stats().peak()[MemoryTag::kActivations],
                f.stack.plan()[MemoryTag::kActivations]);
      total = f.stack.plan()[MemoryTag::kActivations];
    });
    return total;
  };
  EXPECT_EQ(plan(3) - plan(2), Bytes(8 * 16 * 4 + 16 * 108 * 4));
}

TEST(LayerStack, AWorkspaceThatIsTooSmallIsRefusedWithBothSizes) {
  class Hungry final : public Layer {
   public:
    [[nodiscard]] GroupSpec group() const override { return {.name = "hungry", .params = {}}; }
    [[nodiscard]] LayerMemory memory(TokenShape) const override {
      return {.saved = Bytes(0), .workspace = Bytes(1000)};
    }
    void forward(const LayerContext&, const Gathered&, TensorView, TensorView, TensorView,
                 Pass) override {}
    void backward(const LayerContext&, const Gathered&, const Gradients&, TensorView, TensorView,
                  TensorView) override {}
  };
  run_ranks(1, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    std::vector<std::unique_ptr<Layer>> layers;
    layers.push_back(std::make_unique<Hungry>());
    LayerStack stack(engine, std::move(layers), {.width = 1, .tokens = {1, 1}});
    engine.build();
    EXPECT_EQ(stack.workspace_bytes(), Bytes(1000));
    EXPECT_TRUE(contains(message_of<UsageError>([&] { stack.build(TensorView()); }),
                         {"1000 bytes", "not 0 bytes"}));
  });
}

}  // namespace
}  // namespace zero3::test
