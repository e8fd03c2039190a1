// One rank against plain loops on unsharded buffers, bit for bit.
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "support/toy_oracle.h"

namespace zero3::test {
namespace {

using toy::Oracle;
using toy::RunOptions;
using toy::Trajectory;

struct Case {
  std::string name;
  RunOptions options;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

std::vector<Case> cases() {
  const auto make = [](std::string name, DType param, DType reduce, bool tied, int micro_steps) {
    RunOptions options;
    options.shape.tied = tied;
    options.engine = {.precision = {.param = param, .reduce = reduce},
                      .optimizer_groups = {{.weight_decay = 0.1}},
                      .clip = 0.05,
                      .loss_scale = 4,
                      .micro_steps = micro_steps};
    return Case{std::move(name), options};
  };
  Case sgd = make("Sgd", DType::kF32, DType::kF32, true, 3);
  sgd.options.engine.optimizer = OptimizerKind::kSgd;
  Case unclipped = make("Unclipped", DType::kF32, DType::kF32, true, 3);
  unclipped.options.engine.clip = 0;
  return {make("Fp32OneMicroStep", DType::kF32, DType::kF32, true, 1),
          make("Fp32ThreeMicroSteps", DType::kF32, DType::kF32, true, 3),
          make("Fp32UntiedThreeMicroSteps", DType::kF32, DType::kF32, false, 3),
          make("Bf16OneMicroStep", DType::kBF16, DType::kBF16, true, 1),
          make("Bf16ThreeMicroSteps", DType::kBF16, DType::kBF16, true, 3),
          sgd,
          unclipped};
}

class OneRankEqualsPlainLoops : public testing::TestWithParam<Case> {};

TEST_P(OneRankEqualsPlainLoops, InLossesNormsAndWeights) {
  const RunOptions& options = GetParam().options;
  run_ranks(1, [&](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, options.engine);
    toy::ToyModel model(engine, options.shape);
    engine.build();
    model.build();
    Oracle oracle(options.shape, options.engine);
    oracle.take_weights(engine);
    Trajectory want;
    for (int step = 0; step < 4; ++step) oracle.step(step, options.engine.micro_steps, 0.01, want);
    const Trajectory got = toy::train(engine, model, 4);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.norms, want.norms);
    for (const std::string& name : oracle.names())
      EXPECT_EQ(engine.read_parameter(name), oracle.weights(name)) << name;
  });
}

INSTANTIATE_TEST_SUITE_P(, OneRankEqualsPlainLoops, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace zero3::test
