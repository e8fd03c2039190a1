#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include <zero3/trainer/train_loop.h>
#include "support/contains.h"
#include "support/recorded_training.h"
#include "support/thrown.h"

namespace zero3::trainer {
namespace {

using test::contains;
using test::Records;
using test::thrown;
using test::ToyRun;
using test::train_toy;

ToyRun run_with(int accumulate) {
  ToyRun run;
  run.options.accumulate = accumulate;
  return run;
}

std::vector<double> losses(const Records& records) {
  std::vector<double> values;
  for (const StepRecord& record : records.steps) values.push_back(record.loss);
  return values;
}

TEST(TrainLoop, StepsAreCountedFromOneAndTokensAddUp) {
  const Records records = train_toy(run_with(2));
  ASSERT_EQ(records.steps.size(), 3U);
  EXPECT_EQ(records.steps[0].step, 1);
  EXPECT_EQ(records.steps[2].step, 3);
  EXPECT_EQ(records.steps[0].tokens, 36);
  EXPECT_EQ(records.steps[2].tokens, 3 * 36);
}

TEST(TrainLoop, LearningRateFollowsTheSchedule) {
  ToyRun run;
  run.options.schedule = {.peak = 0.5, .warmup = 2, .steps = 3};
  const Records records = train_toy(run);
  EXPECT_EQ(records.steps[0].learning_rate, 0.25);
  EXPECT_EQ(records.steps[1].learning_rate, 0.5);
}

TEST(TrainLoop, EvaluatesEveryFewStepsAndAtTheEnd) {
  const Records records = train_toy(ToyRun{});
  EXPECT_FALSE(records.steps[0].val_loss.has_value());
  EXPECT_TRUE(records.steps[1].val_loss.has_value());
  EXPECT_TRUE(records.steps[2].val_loss.has_value());
  EXPECT_EQ(records.done->val_loss, records.steps[2].val_loss);
}

TEST(TrainLoop, EvaluatesAtTheEndAloneWithoutAnInterval) {
  ToyRun run;
  run.options.eval_every = 0;
  const Records records = train_toy(run);
  EXPECT_FALSE(records.steps[1].val_loss.has_value());
  EXPECT_TRUE(records.steps[2].val_loss.has_value());
}

TEST(TrainLoop, DoesNotEvaluateWithoutValidationData) {
  ToyRun run;
  run.val_fraction = 0;
  const Records records = train_toy(run);
  EXPECT_FALSE(records.steps[2].val_loss.has_value());
  EXPECT_FALSE(records.done->val_loss.has_value());
}

TEST(TrainLoop, EvaluationDoesNotDisturbTraining) {
  ToyRun often;
  often.options.eval_every = 1;
  ToyRun never;
  never.val_fraction = 0;
  never.text = 1800;  // The same training part
  EXPECT_EQ(losses(train_toy(often)), losses(train_toy(never)));
}

TEST(TrainLoop, LearnsTheLettersThatThereAre) {
  ToyRun run;
  run.options.steps = 60;
  run.options.clip = 1.0F;
  run.options.schedule.peak = 3e-2;
  run.options.eval_every = 0;
  const Records records = train_toy(run);
  // Letters are drawn evenly: nothing below ln 13 is there to be learnt.
  EXPECT_NEAR(*records.done->val_loss, std::log(13.0), 0.15);
}

TEST(TrainLoop, SkippedStepChangesNothingAndIsReported) {
  ToyRun run;
  run.options.schedule.peak = 1e38;
  run.options.steps = 4;
  const Records records = train_toy(run);
  EXPECT_TRUE(records.steps[0].skipped.empty());
  EXPECT_TRUE(contains(records.steps[3].skipped, {"not finite"}));
}

TEST(TrainLoop, TooManySkippedStepsInARowEndTheRun) {
  ToyRun run;
  run.options.schedule.peak = 1e38;
  run.options.steps = 100;
  EXPECT_TRUE(contains(thrown<Error>([&] { static_cast<void>(train_toy(run)); }),
                       {"10 steps in a row", "not finite", "learning rate"}));
}

TEST(TrainLoop, PeakIsThePlanTagByTag) {
  for (const int ranks : {1, 2, 4}) {
    for (const bool recompute : {false, true}) {
      ToyRun run = run_with(2);
      run.options.checkpoints.mode = recompute ? CheckpointMode::kRecompute : CheckpointMode::kNone;
      const DoneRecord done = train_toy(run, ranks).done.value();
      for (std::size_t tag = 0; tag < kMemoryTagCount; ++tag) {
        EXPECT_EQ(done.peak.bytes[tag].count(), done.planned.bytes[tag].count())
            << name_of(static_cast<MemoryTag>(tag)) << " at N = " << ranks
            << (recompute ? ", recompute" : "");
      }
    }
  }
}

TEST(TrainLoop, SinkThatThrowsEndsAllRanks) {
  class FullDisk final : public TrainSink {
    void on_step(const StepRecord&) override { throw IoError("the disk is full"); }
    void on_done(const DoneRecord&) override {}
  };
  const ToyRun run;
  const test::TempDir dir;
  const TokenData data(test::write_toy_text(dir, 500), {.seq = 9, .vocab = 13});
  FullDisk sink;
  EXPECT_EQ(thrown<IoError>([&] {
              LocalWorld(3).run([&](Communicator& communicator) {
                const auto device = make_device({.threads = 1, .rank = communicator.rank()});
                train(*device, communicator, run.config, run.options, data,
                      communicator.rank() == 0 ? &sink : nullptr);
              });
            }),
            "the disk is full");
}

struct Sameness {
  const char* name;
  DType dtype;
  bool tied;
  bool recompute;
  friend void PrintTo(const Sameness& sameness, std::ostream* out) { *out << sameness.name; }
};
class RanksAreOneProcess : public ::testing::TestWithParam<Sameness> {};

TEST_P(RanksAreOneProcess, ToTheBit) {
  const auto run = [](int ranks, int micro_batches) {
    ToyRun toy = run_with(micro_batches / ranks);
    toy.options.dtype = GetParam().dtype;
    if (GetParam().recompute) toy.options.checkpoints.mode = CheckpointMode::kRecompute;
    toy.config.tied = GetParam().tied;
    return train_toy(toy, ranks);
  };
  for (const auto& [micro_batches, worlds] :
       {std::pair{12, std::vector{2, 3, 4}}, std::pair{7, std::vector{7}}}) {
    const Records alone = run(1, micro_batches);
    for (const int ranks : worlds) {
      const Records records = run(ranks, micro_batches);
      EXPECT_EQ(losses(records), losses(alone)) << ranks;
      EXPECT_EQ(records.steps[2].grad_norm, alone.steps[2].grad_norm) << ranks;
      EXPECT_EQ(records.done->val_loss, alone.done->val_loss) << ranks;
      EXPECT_EQ(records.done->weights_checksum, alone.done->weights_checksum) << ranks;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TrainLoop, RanksAreOneProcess,
                         ::testing::Values(Sameness{"Fp32", DType::kF32, false, false},
                                           Sameness{"Fp32Tied", DType::kF32, true, false},
                                           Sameness{"Bf16", DType::kBF16, false, false},
                                           Sameness{"Bf16TiedRecompute", DType::kBF16, true, true}),
                         [](const auto& test) { return test.param.name; });

TEST(TrainLoop, SimulatedDeviceGivesTheSameBits) {
  ToyRun run = run_with(2);
  const Records cpu = train_toy(run);
  run.device = DeviceKind::kCpuSim;
  const Records simulated = train_toy(run);
  EXPECT_EQ(losses(simulated), losses(cpu));
  EXPECT_EQ(simulated.done->weights_checksum, cpu.done->weights_checksum);
}

TEST(TrainLoop, SeedChangesTheRun) {
  ToyRun run;
  const std::vector<double> first = losses(train_toy(run));
  run.options.seed = 1;
  EXPECT_NE(losses(train_toy(run)), first);
}

TEST(RankTrainer, NormsBiasesAndEmbeddingsDoNotDecay) {
  const EngineOptions options = engine_options({.weight_decay = 0.25F});
  const auto device = make_device({.threads = 1});
  const auto self = make_self_communicator();
  LlamaConfig config = test::toy_config();
  config.qkv_bias = true;
  const RankTrainer trainer(*device, *self, config, {.micro_batch = {1, 4}, .weight_decay = 0.25F});
  for (const GroupSpec& group : trainer.engine().groups()) {
    for (const ParamSpec& param : group.params) {
      const bool matrix = param.shape.size() == 2 && param.name.find("embed") == std::string::npos;
      const OptimizerGroup& hyper =
          options.optimizer_groups[static_cast<std::size_t>(param.optimizer_group)];
      EXPECT_EQ(hyper.weight_decay, matrix ? 0.25F : 0.0F) << param.name;
    }
  }
}

TEST(RankTrainer, EvaluationHasTheSameBitsForEveryNumberOfRanks) {
  const auto evaluate = [](int ranks, std::int64_t micro_batches) {
    double loss = 0;
    LocalWorld(ranks).run([&](Communicator& communicator) {
      const auto device = make_device({.threads = 1});
      RankTrainer trainer(*device, communicator, test::toy_config(), {.micro_batch = {2, 9}});
      trainer.build();
      const double own = trainer.evaluate(
          micro_batches,
          [](std::int64_t j, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
            const test::ToyTokens tokens = test::toy_tokens({2, 9}, 13, 18 * j);
            std::copy(tokens.inputs.begin(), tokens.inputs.end(), inputs.begin());
            std::copy(tokens.targets.begin(), tokens.targets.end(), targets.begin());
          });
      if (communicator.rank() == ranks - 1) loss = own;
    });
    return loss;
  };
  for (const std::int64_t micro_batches : {1, 5, 6}) {
    const double alone = evaluate(1, micro_batches);
    for (const int ranks : {2, 3, 4})
      EXPECT_EQ(evaluate(ranks, micro_batches), alone) << ranks << ' ' << micro_batches;
  }
}

}  // namespace
}  // namespace zero3::trainer
