#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>

#include <zero3/internal/cpu_stream.h>

#include "support/contains.h"
#include "support/thrown.h"
#include "support/toy_llama.h"
#include "trainer/data/hf_values.h"

namespace zero3::trainer {
namespace {

using test::contains;
using test::ReferenceLlama;
using test::thrown;
using test::toy_config;
using test::toy_tokens;
using test::ToyLlama;
using test::ToyOptions;
using test::ToyTokens;

using Gradient = std::map<std::string, std::vector<float>>;

struct Feature {
  const char* name;
  void (*apply)(LlamaConfig&);
};
const Feature kFeatures[] = {
    {"Untied", [](LlamaConfig&) {}},
    {"Tied", [](LlamaConfig& c) { c.tied = true; }},
    {"OneLayer", [](LlamaConfig& c) { c.layers = 1; }},
    {"QkvBias", [](LlamaConfig& c) { c.qkv_bias = true; }},
    {"TiedQkNorm", [](LlamaConfig& c) { c.tied = c.qk_norm = true; }},
};
void PrintTo(const Feature& feature, std::ostream* out) {
  *out << feature.name;
}

class LlamaModelFeature : public ::testing::TestWithParam<Feature> {
 protected:
  LlamaModelFeature() { GetParam().apply(config); }
  LlamaConfig config = toy_config();
  ToyTokens tokens = toy_tokens({.batch = 2, .seq = 9}, config.vocab);
};
INSTANTIATE_TEST_SUITE_P(, LlamaModelFeature, ::testing::ValuesIn(kFeatures),
                         [](const auto& test) { return test.param.name; });

// Sums of tens of fp32 terms in series, some forty deep for a gradient of the first layer.
constexpr double kLossTolerance = 1e-6;
constexpr double kGradientTolerance = 5e-6;

TEST_P(LlamaModelFeature, LossEqualsDoubleReference) {
  ToyLlama toy(config);
  ReferenceLlama reference(config);
  test::write_reference(reference, toy.engine.groups());
  const double want = reference.loss(tokens.inputs, tokens.targets, tokens.shape);
  const LlamaModel::Loss got = toy.model.evaluate(tokens.inputs, tokens.targets, tokens.shape);
  EXPECT_NEAR(got.sum, want, kLossTolerance * want);
  EXPECT_EQ(got.tokens, 15);
}

TEST_P(LlamaModelFeature, GradientsEqualDifferencesOfDoubleReference) {
  ToyLlama toy(config);
  toy.train(tokens);
  const Gradient got = toy.gradients();
  ReferenceLlama reference(config);
  test::write_reference(reference, toy.engine.groups());
  const auto loss = [&] { return reference.loss(tokens.inputs, tokens.targets, tokens.shape); };
  for (auto& [name, values] : reference.params) {
    double error = 0, largest = 0;
    // A prime stride visits every column; small parameters are checked whole.
    for (std::size_t i = 0; i < values.size(); i += values.size() < 40 ? 1 : 17) {
      const double want = test::central_difference(values[i], loss);
      error = std::max(error, std::abs(double{got.at(name)[i]} - want));
      largest = std::max(largest, std::abs(want));
    }
    EXPECT_LT(error, kGradientTolerance * largest) << name;
  }
}

TEST_P(LlamaModelFeature, RecomputingGivesTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ToyOptions options;
    options.model.dtype = dtype;
    ToyLlama plain(config, options);
    options.model.checkpoints.mode = CheckpointMode::kRecompute;
    ToyLlama recomputing(config, options);
    plain.train(tokens);
    recomputing.train(tokens);
    EXPECT_EQ(recomputing.gradients(), plain.gradients()) << dtype;
    EXPECT_EQ(recomputing.result_of_step.loss_sum, plain.result_of_step.loss_sum) << dtype;
  }
}

TEST_P(LlamaModelFeature, MeasuredPeakEqualsThePlan) {
  for (const bool recompute : {false, true}) {
    ToyOptions options;
    options.model.checkpoints.mode = recompute ? CheckpointMode::kRecompute : CheckpointMode::kNone;
    options.micro_steps = 2;
    ToyLlama toy(config, options);
    toy.train(tokens);
    toy.train(tokens);
    static_cast<void>(toy.engine.step({.learning_rate = 0.1F}));
    toy.engine.synchronize();
    const MemoryPlan plan = toy.engine.plan() + toy.model.plan();
    const MemoryPlan peak = toy.device->stats().peak();
    EXPECT_EQ(peak, plan) << "planned:\n" << to_table(plan) << "measured:\n" << to_table(peak);
  }
}

/// A case as Hugging Face computed it.
class LlamaModelCase : public ::testing::TestWithParam<test::HfCase> {
 protected:
  LlamaModelCase() {
    const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                       concat("zero3-", getpid(), "-", GetParam().name, ".json");
    std::ofstream(file) << GetParam().config;
    config = load_config(file);
    std::filesystem::remove(file);
  }
  LlamaConfig config;
};
INSTANTIATE_TEST_SUITE_P(, LlamaModelCase, ::testing::ValuesIn(test::hf_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(LlamaModelCase, LossAndGradientsEqualHuggingFace) {
  const ToyTokens tokens = toy_tokens({.batch = 2, .seq = 9}, config.vocab);
  ToyLlama toy(config);
  toy.train(tokens);
  const Gradient got = toy.gradients();
  EXPECT_NEAR(toy.result_of_step.loss_sum, GetParam().loss_sum,
              kLossTolerance * GetParam().loss_sum);
  for (const test::HfGradient& want : GetParam().gradients) {
    const std::vector<float>& values = got.at(want.parameter);
    double largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(double{value}));
    EXPECT_NEAR(values[static_cast<std::size_t>(want.index)], want.value,
                kGradientTolerance * largest)
        << want.parameter << " " << want.index;
  }
  EXPECT_EQ(GetParam().gradients.size(), 3 * got.size());
}

double loss_in(const LlamaConfig& config, const ToyOptions& options) {
  const ToyTokens tokens = toy_tokens(options.model.tokens, config.vocab);
  return ToyLlama(config, options).model.evaluate(tokens.inputs, tokens.targets, tokens.shape).sum;
}

TEST(LlamaModel, TrainingReportsTheLossThatEvaluationFinds) {
  ToyLlama toy(toy_config());
  const ToyTokens tokens = toy_tokens({.batch = 2, .seq = 9}, 13);
  const LlamaModel::Loss loss = toy.model.evaluate(tokens.inputs, tokens.targets, tokens.shape);
  toy.train(tokens);
  const StepResult result = toy.engine.step({.learning_rate = 0});
  EXPECT_EQ(result.loss_sum, loss.sum);
  EXPECT_EQ(result.tokens, loss.tokens);
}

TEST(LlamaModel, Bf16IsNearFp32) {
  ToyOptions options;
  const double fp32 = loss_in(toy_config(), options);
  options.model.dtype = DType::kBF16;
  // 15 tokens whose logits come from a dozen roundings to 8 bits.
  EXPECT_NEAR(loss_in(toy_config(), options), fp32, 0.02 * fp32);
}

TEST(LlamaModel, ThreadsDoNotChangeTheBits) {
  Gradient gradients[2];
  const ToyTokens tokens = toy_tokens({.batch = 2, .seq = 9}, 13);
  for (const int threads : {1, 2}) {
    ToyOptions options;
    options.threads = threads;
    ToyLlama toy(toy_config(), options);
    toy.train(tokens);
    gradients[threads - 1] = toy.gradients();
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST(LlamaModel, SimulatedDeviceGivesTheSameBits) {
  Gradient gradients[2];
  const ToyTokens tokens = toy_tokens({.batch = 2, .seq = 9}, 13);
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCpuSim}) {
    ToyOptions options;
    options.kind = kind;
    ToyLlama toy(toy_config(), options);
    toy.train(tokens);
    gradients[kind == DeviceKind::kCpu ? 0 : 1] = toy.gradients();
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST(LlamaModel, LossScaleLeavesTheStepUnchanged) {
  Gradient gradients[2];
  const ToyTokens tokens = toy_tokens({.batch = 2, .seq = 9}, 13);
  for (const int i : {0, 1}) {
    ToyOptions options;
    options.loss_scale = i == 0 ? 1.0F : 1024.0F;
    ToyLlama toy(toy_config(), options);
    toy.train(tokens);
    gradients[i] = toy.gradients();
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST(LlamaModel, SmallerMicroBatchEqualsAModelOfItsSize) {
  const ToyTokens small = toy_tokens({.batch = 1, .seq = 5}, 13);
  ToyOptions options;
  ToyLlama larger(toy_config(), options);
  options.model.tokens = small.shape;
  ToyLlama exact(toy_config(), options);
  larger.train(small);
  exact.train(small);
  EXPECT_EQ(larger.gradients(), exact.gradients());
}

TEST(LlamaModel, MicroBatchWithoutTokensHasNoGradient) {
  ToyLlama toy(toy_config());
  toy.train(toy_tokens({.batch = 0, .seq = 9}, 13));
  const Gradient gradients = toy.gradients();
  EXPECT_EQ(toy.result_of_step.tokens, 0);
  EXPECT_EQ(toy.result_of_step.loss_sum, 0);
  for (const auto& [name, values] : gradients) {
    EXPECT_EQ(values, std::vector<float>(values.size(), 0)) << name;
  }
}

TEST(LlamaModel, IgnoredTargetsCountForNothing) {
  ToyLlama toy(toy_config());
  ToyTokens tokens = toy_tokens({.batch = 2, .seq = 9}, 13);
  const double all = toy.model.evaluate(tokens.inputs, tokens.targets, tokens.shape).sum;
  std::vector<std::int32_t> only(tokens.targets.size(), kIgnoreToken), others = tokens.targets;
  only[5] = std::exchange(others[5], kIgnoreToken);
  const LlamaModel::Loss one = toy.model.evaluate(tokens.inputs, only, tokens.shape);
  EXPECT_EQ(one.tokens, 1);
  EXPECT_NEAR(one.sum + toy.model.evaluate(tokens.inputs, others, tokens.shape).sum, all,
              1e-12 * all);
}

/// Weights after two steps of `micro_steps` micro-batches each, trained on `device`.
std::uint64_t checksum_after_steps(std::unique_ptr<Device> device, int micro_steps) {
  LlamaConfig config = toy_config();
  config.tied = true;
  ToyOptions options;
  options.micro_steps = micro_steps;
  ToyLlama toy(config, options, std::move(device), make_self_communicator());
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < micro_steps; ++i) {
      toy.train(toy_tokens({.batch = 2, .seq = 9}, 13, 100 * (step * micro_steps + i)));
    }
    static_cast<void>(toy.engine.step({.learning_rate = 0.01F}));
  }
  return toy.engine.weights_checksum();
}

TEST(LlamaModel, EveryInterleavingOfStreamsTrainsTheSame) {
  const DeviceOptions device = {.kind = DeviceKind::kCpu, .threads = 1, .poison = true};
  const std::uint64_t want = checksum_after_steps(make_device(device), 5);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto executor = internal::make_stepped_executor(seed);
    EXPECT_EQ(checksum_after_steps(internal::make_cpu_device(device, *executor), 5), want) << seed;
  }
}

TEST(LlamaModel, RanksEqualMicroStepsOfOneProcess) {
  const ToyTokens batches[] = {toy_tokens({.batch = 2, .seq = 9}, 13),
                               toy_tokens({.batch = 2, .seq = 9}, 13, 500)};
  LlamaConfig config = toy_config();
  config.tied = true;
  ToyOptions options;
  options.micro_steps = 2;
  ToyLlama one(config, options);
  for (const ToyTokens& tokens : batches) one.train(tokens);
  const StepResult want = one.engine.step({.learning_rate = 0.01F});
  const std::uint64_t checksum = one.engine.weights_checksum();
  LocalWorld(2).run([&](std::unique_ptr<Communicator> end) {
    const int rank = end->rank();
    ToyLlama toy(config, {}, make_device({.threads = 1, .poison = true}), std::move(end));
    toy.train(batches[rank]);
    const StepResult got = toy.engine.step({.learning_rate = 0.01F});
    EXPECT_EQ(got.loss_sum, want.loss_sum) << rank;
    EXPECT_EQ(got.grad_norm, want.grad_norm) << rank;
    EXPECT_EQ(toy.engine.weights_checksum(), checksum) << rank;
  });
}

TEST(LlamaModel, NothingIsAllocatedAfterTheFirstStep) {
  ToyLlama toy(toy_config());
  const ToyTokens tokens = toy_tokens({.batch = 2, .seq = 9}, 13);
  const auto step = [&] {
    toy.train(tokens);
    static_cast<void>(toy.engine.step({.learning_rate = 0.01F}));
    static_cast<void>(toy.model.evaluate(tokens.inputs, tokens.targets, tokens.shape));
    return toy.device->pool().blocks_taken();
  };
  const std::int64_t first = step();
  EXPECT_EQ(step(), first);
}

TEST(LlamaModel, TrainingLearnsTheTokensByHeart) {
  ToyOptions options;
  ToyLlama toy(toy_config(), options);
  const ToyTokens tokens = toy_tokens({.batch = 2, .seq = 9}, 13);
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    toy.train(tokens);
    last = toy.engine.step({.learning_rate = 0.2F}).loss_sum;
    if (step == 0) first = last;
  }
  EXPECT_LT(last, 0.2 * first);
}

TEST(LlamaModel, TokensOutsideOfTheVocabularyAreRefused) {
  ToyLlama toy(toy_config());
  const auto error = [&](std::vector<std::int32_t> inputs, std::vector<std::int32_t> targets) {
    return thrown<UsageError>(
        [&] { static_cast<void>(toy.model.evaluate(inputs, targets, {.batch = 1, .seq = 2})); });
  };
  EXPECT_TRUE(contains(error({1, 13}, {1, 2}), {"token 1 is 13", "vocabulary of 13"}));
  EXPECT_TRUE(contains(error({-1, 1}, {1, 2}), {"token 0 is -1"}));
  EXPECT_TRUE(contains(error({1, 1}, {1, 13}), {"target 1 is 13"}));
  EXPECT_TRUE(contains(error({1, 1}, {-1, 1}), {"target 0 is -1"}));
  EXPECT_TRUE(contains(error({1, 1, 1}, {1, 1}), {"3 inputs", "1 x 2"}));
}

TEST(LlamaModel, LargerMicroBatchesThanPlannedAreRefused) {
  ToyLlama toy(toy_config());
  // As many rows as planned, but longer sequences than the rotary table.
  const ToyTokens tokens = toy_tokens({.batch = 1, .seq = 18}, 13);
  EXPECT_TRUE(contains(thrown<UsageError>([&] {
                         static_cast<void>(
                             toy.model.evaluate(tokens.inputs, tokens.targets, tokens.shape));
                       }),
                       {"1 x 18", "2 x 9"}));
}

TEST(LlamaModel, DtypeOtherThanTheEnginesIsRefused) {
  const auto device = make_device({.threads = 1});
  const auto communicator = make_self_communicator();
  Engine engine(*device, *communicator, {.optimizer_groups = {{}, {}}});
  EXPECT_TRUE(contains(thrown<UsageError>([&] {
                         LlamaModel(engine, toy_config(),
                                    {.tokens = {.batch = 1, .seq = 1}, .dtype = DType::kBF16});
                       }),
                       {"bf16", "fp32"}));
}

TEST(LlamaModel, UseBeforeBuildIsRefused) {
  const auto device = make_device({.threads = 1});
  const auto communicator = make_self_communicator();
  Engine engine(*device, *communicator, {.optimizer_groups = {{}, {}}});
  LlamaModel model(engine, toy_config(), {.tokens = {.batch = 1, .seq = 1}});
  engine.build();
  const std::vector<std::int32_t> one = {1};
  EXPECT_TRUE(contains(thrown<UsageError>([&] {
                         static_cast<void>(model.evaluate(one, one, {.batch = 1, .seq = 1}));
                       }),
                       {"build()"}));
}

}  // namespace
}  // namespace zero3::trainer
