// N ranks are one process: runs with equal N · micro_steps have equal bits (A2).
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "support/toy_model.h"

namespace zero3::test {
namespace {

using toy::run_toy;
using toy::RunOptions;
using toy::Trajectory;

struct Case {
  std::string name;
  RunOptions options;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

RunOptions options_of(DType param, DType reduce, bool tied) {
  RunOptions options;
  options.shape.tied = tied;
  options.engine = {.precision = {.param = param, .reduce = reduce},
                    .optimizer_groups = {{.weight_decay = 0.1}},
                    .clip = 0.05,
                    .loss_scale = 8};
  return options;
}

std::vector<Case> cases() {
  RunOptions recompute = options_of(DType::kBF16, DType::kF32, true);
  recompute.checkpoints.mode = CheckpointMode::kRecompute;
  RunOptions kept = options_of(DType::kF32, DType::kF32, true);
  kept.engine.keep_gathered_below = Elements(1000);
  kept.engine.prefetch = 2;
  kept.engine.grad_slots = 3;
  RunOptions sgd = options_of(DType::kF32, DType::kBF16, false);
  sgd.engine.optimizer = OptimizerKind::kSgd;
  return {{"Fp32Tied", options_of(DType::kF32, DType::kF32, true)},
          {"Fp32Untied", options_of(DType::kF32, DType::kF32, false)},
          {"Bf16Tied", options_of(DType::kBF16, DType::kBF16, true)},
          {"Bf16Untied", options_of(DType::kBF16, DType::kBF16, false)},
          {"Fp16ReducedInBf16", options_of(DType::kF16, DType::kBF16, true)},
          {"Bf16Recomputed", recompute},
          {"KeptAndFarAhead", kept},
          {"Sgd", sgd}};
}

class RanksEqualOneProcess : public testing::TestWithParam<Case> {};

TEST_P(RanksEqualOneProcess, TwelveMicroBatchesAStep) {
  RunOptions options = GetParam().options;
  options.engine.micro_steps = 12;
  const Trajectory one = run_toy(1, options);
  for (const int ranks : {2, 3, 4}) {
    options.engine.micro_steps = 12 / ranks;
    EXPECT_EQ(run_toy(ranks, options), one) << ranks << " ranks";
  }
}

TEST_P(RanksEqualOneProcess, SevenMicroBatchesAStep) {
  RunOptions options = GetParam().options;
  options.engine.micro_steps = 7;
  const Trajectory one = run_toy(1, options);
  options.engine.micro_steps = 1;
  EXPECT_EQ(run_toy(7, options), one);
}

INSTANTIATE_TEST_SUITE_P(, RanksEqualOneProcess, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace zero3::test
