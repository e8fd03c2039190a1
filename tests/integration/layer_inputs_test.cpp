// Where layer inputs wait changes no bit, and what goes wrong there disturbs no later step.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/contains.h"
#include "support/offload_faults.h"
#include "support/temp_dir.h"
#include "support/toy_model.h"

namespace zero3::test {
namespace {

using toy::run_toy;
using toy::RunOptions;
using toy::ToyModel;
using toy::Trajectory;

class LayerInputs : public testing::Test {
 protected:
  [[nodiscard]] ActivationCheckpoints checkpoints(CheckpointMode mode) const {
    ActivationCheckpoints options{.mode = mode};
    if (mode == CheckpointMode::kDisk) options.directory = dir_.path().string();
    return options;
  }
  [[nodiscard]] const std::filesystem::path& directory() const { return dir_.path(); }

  /// Trains a step, lets `fault` happen, and trains on: the last step must be one of a run in which
  /// nothing had happened.
  void expect_no_trace_of(const std::function<void(Engine&, ToyModel&)>& fault, DeviceKind kind,
                          CheckpointMode mode) {
    Trajectory with, without;
    for (const bool faulty : {false, true}) {
      run_ranks(1,
                [&](Rank& rank) {
                  Engine engine(*rank.device, *rank.communicator, {.clip = 0.1});
                  ToyModel model(engine, {.layers = 5}, checkpoints(mode));
                  engine.build();
                  model.build();
                  static_cast<void>(toy::train(engine, model, 2));
                  const std::int64_t blocks = rank.device->pool().blocks_taken();
                  if (faulty) fault(engine, model);
                  (faulty ? with : without) = toy::train(engine, model, 3);
                  EXPECT_EQ(rank.device->pool().blocks_taken(), blocks);
                },
                {.kind = kind});
    }
    EXPECT_EQ(with, without) << name_of(kind) << ", " << name_of(mode);
    EXPECT_TRUE(nameless_files_in(directory()).empty());
  }
  void expect_no_trace_of(const std::function<void(Engine&, ToyModel&)>& fault) {
    for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCpuSim}) {
      for (const CheckpointMode mode : kCheckpointModes) expect_no_trace_of(fault, kind, mode);
    }
  }

 private:
  TempDir dir_;
};

TEST_F(LayerInputs, WaitAnywhereWithTheSameBits) {
  RunOptions options{.shape = {.layers = 5}, .engine = {.clip = 0.05, .micro_steps = 2}};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    options.engine.precision = {.param = dtype, .reduce = dtype};
    for (const int ranks : {1, 2, 3}) {
      options.checkpoints = {};
      const Trajectory want = run_toy(ranks, options);
      for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCpuSim}) {
        for (const CheckpointMode mode : kCheckpointModes) {
          options.checkpoints = checkpoints(mode);
          EXPECT_EQ(run_toy(ranks, options, {.kind = kind}), want)
              << ranks << " ranks on " << name_of(kind) << ", " << name_of(mode);
        }
      }
    }
  }
}

// E4: accumulation.
TEST_F(LayerInputs, MoveOncePerMicroStepAndComeBackOnce) {
  for (const int micro_steps : {1, 2, 3}) {
    for (const CheckpointMode mode : {CheckpointMode::kHost, CheckpointMode::kDisk}) {
      run_ranks(1,
                [&](Rank& rank) {
                  Engine engine(*rank.device, *rank.communicator, {.micro_steps = micro_steps});
                  const toy::Shape shape{.width = 12, .rows = 9, .layers = 6};
                  ToyModel model(engine, shape, checkpoints(mode));
                  engine.build();
                  model.build();
                  static_cast<void>(toy::train(engine, model, 4));  // and evaluates
                  const OffloadCounters moved = model.stack().inputs().counters();
                  const Bytes want(std::int64_t{4} * micro_steps * (6 - 2) * 9 * 12 * 4);
                  const bool disk = mode == CheckpointMode::kDisk;
                  EXPECT_EQ(disk ? moved.to_disk : moved.to_host, want);
                  EXPECT_EQ(disk ? moved.from_disk : moved.from_host, want);
                },
                {.kind = DeviceKind::kCpuSim});
    }
  }
}

TEST_F(LayerInputs, TakeNothingMoreInAHundredSteps) {
  for (const CheckpointMode mode : kCheckpointModes) {
    run_ranks(1,
              [&](Rank& rank) {
                Engine engine(*rank.device, *rank.communicator, {});
                ToyModel model(engine, {.layers = 5}, checkpoints(mode));
                const MemoryPlan plan = engine.plan() + model.plan();
                engine.build();
                model.build();
                static_cast<void>(toy::train(engine, model, 1));
                const std::int64_t blocks = rank.device->pool().blocks_taken();
                static_cast<void>(toy::train(engine, model, 99));
                EXPECT_EQ(rank.device->pool().blocks_taken(), blocks) << name_of(mode);
                EXPECT_EQ(rank.device->stats().peak(), plan) << name_of(mode);
              },
              {.kind = DeviceKind::kCpuSim});
  }
}

/// A training forward whose micro-step ends in an exception.
void forward_alone(Engine& engine, ToyModel& model) {
  EXPECT_THROW(
      {
        MicroStep scope = engine.begin_micro_step();
        model.forward(scope, 7, 0);
        throw std::runtime_error("between put and take");
      },
      std::runtime_error);
  engine.reset();
}

TEST_F(LayerInputs, OfAForwardWithoutABackwardAreDropped) {
  expect_no_trace_of(forward_alone);
  expect_no_trace_of([](Engine& engine, ToyModel& model) {
    for (int i = 0; i < 3; ++i) forward_alone(engine, model);
  });
}

TEST_F(LayerInputs, OfABackwardThatThrowsHalfWayAreDropped) {
  expect_no_trace_of([](Engine& engine, ToyModel& model) {
    EXPECT_THROW(
        {
          MicroStep scope = engine.begin_micro_step();
          model.forward(scope, 7, 0);
          model.fail_in_layer(2);
          model.backward();
        },
        toy::LayerFailure);
    engine.reset();
  });
}

TEST_F(LayerInputs, OfAPassWhoseComputingFailsAreDropped) {
  expect_no_trace_of([](Engine& engine, ToyModel& model) {
    {
      MicroStep scope = engine.begin_micro_step();
      model.forward(scope, 7, 0);
      engine.compute().call("kernel", [] { throw toy::LayerFailure(); });
      model.backward();
    }
    EXPECT_EQ(message_of<toy::LayerFailure>([&] { engine.step({.learning_rate = 0.1}); }),
              "a layer's own");
    engine.reset();
  });
}

TEST_F(LayerInputs, AreForOneBackward) {
  expect_no_trace_of([](Engine& engine, ToyModel& model) {
    {
      MicroStep scope = engine.begin_micro_step();
      model.forward(scope, 7, 0);
      model.backward();
      EXPECT_TRUE(contains(usage_error([&] { model.backward(); }), {"without a training forward"}));
    }
    engine.reset();
  });
}

// E7: inference in between takes the layers' places, and the backward says so.
TEST_F(LayerInputs, OfATrainingForwardEndWithThePassThatFollows) {
  expect_no_trace_of([](Engine& engine, ToyModel& model) {
    EXPECT_THROW(
        {
          MicroStep scope = engine.begin_micro_step();
          model.forward(scope, 7, 0);
          static_cast<void>(model.stack().input({.batch = 1, .seq = 1}));
          EXPECT_TRUE(
              contains(usage_error([&] { model.backward(); }), {"without a training forward"}));
          throw std::runtime_error("not trained");
        },
        std::runtime_error);
    engine.reset();
  });
}

// E10
TEST_F(LayerInputs, OnAFullDiskFailTheStepAndNoOther) {
  for (const std::int64_t k : {0, 1, 2}) {
    expect_no_trace_of(
        [&](Engine& engine, ToyModel& model) {
          const LargestFile full(k * 4096 + 10);
          const std::string error =
              message_of<IoError>([&] { static_cast<void>(toy::train(engine, model, 1)); });
          EXPECT_TRUE(contains(error, {"cannot write", "layer " + std::to_string(k)}));
          engine.reset();
        },
        DeviceKind::kCpu, CheckpointMode::kDisk);
  }
}

TEST_F(LayerInputs, ThatTheDiskHasChangedFailTheStepAndNoOther) {
  expect_no_trace_of(
      [&](Engine& engine, ToyModel& model) {
        {
          MicroStep scope = engine.begin_micro_step();
          model.forward(scope, 7, 0);
          engine.synchronize();
          flip_byte(nameless_files_in(directory()).at(0), 4096 + 3);
          model.backward();
        }
        EXPECT_TRUE(contains(message_of<IoError>([&] { engine.step({.learning_rate = 0.1}); }),
                             {"not what was written", "layer 1"}));
        engine.reset();
      },
      DeviceKind::kCpu, CheckpointMode::kDisk);
}

}  // namespace
}  // namespace zero3::test
