#include <zero3/adamw.h>

#include <gtest/gtest.h>

#include <support/contains.h>
#include <support/thrown.h>

#include "data/torch_reference.inc"
#include "values.h"

namespace zero3::test {
namespace {

constexpr AdamWStep kStep = {.learning_rate = 1e-3,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .weight_decay = 0.1,
                             .grad_scale = 0.5,
                             .t = 3};

struct State {
  std::vector<float> w, m, v, g;
};

State make_state(std::int64_t count) {
  State s{normal_values(count, 1), normal_values(count, 2, 0.1F), normal_values(count, 3, 0.1F),
          normal_values(count, 4)};
  for (float& v : s.v) v *= v;
  return s;
}

State run(Bench& bench, State s, const AdamWStep& step) {
  const Buffer w = bench.upload(s.w), m = bench.upload(s.m), v = bench.upload(s.v);
  const Buffer g = bench.upload(s.g);
  adamw_step(w.view(), m.view(), v.view(), g.view(), step, *bench.stream);
  return {bench.download<float>(w.view()), bench.download<float>(m.view()),
          bench.download<float>(v.view()), s.g};
}

/// The header's formula, one fp32 operation at a time.
State scalar_loop(State s, const AdamWStep& step) {
  const auto t = static_cast<double>(step.t);
  const auto scale = static_cast<float>(step.grad_scale);
  const auto keep = static_cast<float>(1.0 - step.learning_rate * step.weight_decay);
  const auto b1 = static_cast<float>(step.beta1), new1 = static_cast<float>(1.0 - step.beta1);
  const auto b2 = static_cast<float>(step.beta2), new2 = static_cast<float>(1.0 - step.beta2);
  const auto size = static_cast<float>(step.learning_rate / (1.0 - std::pow(step.beta1, t)));
  const auto unbias = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(step.beta2, t)));
  const auto eps = static_cast<float>(step.eps);
  for (std::size_t i = 0; i < s.w.size(); ++i) {
    const float g = s.g[i] * scale;
    s.m[i] = b1 * s.m[i] + new1 * g;
    s.v[i] = b2 * s.v[i] + new2 * g * g;
    const float denominator = std::sqrt(s.v[i]) * unbias + eps;
    s.w[i] = s.w[i] * keep - size * s.m[i] / denominator;
  }
  return s;
}

TEST(AdamW, EqualsAScalarLoopInEveryBit) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t count : kSizes) {
    const State start = make_state(count);
    const State got = run(bench, start, kStep);
    const State want = scalar_loop(start, kStep);
    EXPECT_EQ(bits_of(got.w), bits_of(want.w)) << count;
    EXPECT_EQ(bits_of(got.m), bits_of(want.m)) << count;
    EXPECT_EQ(bits_of(got.v), bits_of(want.v)) << count;
  }
}

TEST(AdamW, MatchesDoubleOverTenSteps) {
  Bench bench;
  State s{normal_values(101, 1), std::vector<float>(101), std::vector<float>(101), {}};
  std::vector<double> w(s.w.begin(), s.w.end()), m(101), v(101);
  for (int t = 1; t <= 10; ++t) {
    s.g = normal_values(101, 10 + static_cast<std::uint32_t>(t));
    AdamWStep step = kStep;
    step.t = t;
    s = run(bench, s, step);
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = static_cast<double>(s.g[i]) * step.grad_scale;
      w[i] -= step.learning_rate * step.weight_decay * w[i];
      m[i] = step.beta1 * m[i] + (1 - step.beta1) * g;
      v[i] = step.beta2 * v[i] + (1 - step.beta2) * g * g;
      w[i] -= step.learning_rate / (1 - std::pow(step.beta1, t)) * m[i] /
              (std::sqrt(v[i] / (1 - std::pow(step.beta2, t))) + step.eps);
    }
  }
  EXPECT_LT(relative_error(s.w, w), 5e-7);
}

TEST(AdamW, MatchesTorchOverTenSteps) {
  namespace torch = torch_reference;
  Bench bench;
  const auto count = torch::kAdamWWeights.size();
  State s{torch::kAdamWWeights, std::vector<float>(count), std::vector<float>(count), {}};
  for (std::size_t t = 0; t < 10; ++t) {
    const auto* grads = torch::kAdamWGrads.data() + t * count;
    s.g.assign(grads, grads + count);
    s = run(bench, s,
            {.learning_rate = 1e-2,
             .beta1 = 0.9,
             .beta2 = 0.999,
             .weight_decay = 0.1,
             .t = static_cast<std::int64_t>(t) + 1});
  }
  const std::vector<double> want(torch::kAdamWResult.begin(), torch::kAdamWResult.end());
  EXPECT_LT(relative_error(s.w, want), 5e-7);
}

TEST(AdamW, GradScaleIsAFactorOfTheGradient) {
  Bench bench;
  State scaled = make_state(33);
  AdamWStep step = kStep;
  step.grad_scale = 0.25;
  const State by_factor = run(bench, scaled, step);
  for (float& g : scaled.g) g *= 0.25F;
  step.grad_scale = 1.0;
  EXPECT_EQ(by_factor.w, run(bench, scaled, step).w);
}

TEST(AdamW, SameBitsForAnyThreads) {
  expect_same_bits_for_any_threads(
      [](Bench& bench) { return run(bench, make_state(70001), kStep).w; });
}

TEST(AdamW, SameBitsOnEveryDevice) {
  expect_same_bits_on_every_device(
      [](Bench& bench) { return run(bench, make_state(1025), kStep).w; });
}

TEST(AdamW, RefusesUnequalSizes) {
  Bench bench;
  const Buffer a = bench.allocate(8), b = bench.allocate(8), c = bench.allocate(8);
  const Buffer grads = bench.allocate(7);
  const auto error = thrown<UsageError>(
      [&] { adamw_step(a.view(), b.view(), c.view(), grads.view(), kStep, *bench.stream); });
  EXPECT_TRUE(contains(error, {"adamw_step", "grads", "7", "8"}));
}

TEST(AdamW, RefusesOverlap) {
  Bench bench;
  const Buffer a = bench.allocate(16), b = bench.allocate(8), c = bench.allocate(8);
  const auto error = thrown<UsageError>([&] {
    adamw_step(a.view().slice(0, 8), b.view(), c.view(), a.view().slice(4, 8), kStep,
               *bench.stream);
  });
  EXPECT_TRUE(contains(error, {"weights", "grads"}));
}

TEST(AdamW, RefusesStepZero) {
  Bench bench;
  const Buffer a = bench.allocate(1), b = bench.allocate(1), c = bench.allocate(1);
  const Buffer grads = bench.allocate(1);
  AdamWStep step = kStep;
  step.t = 0;
  EXPECT_THROW(adamw_step(a.view(), b.view(), c.view(), grads.view(), step, *bench.stream),
               UsageError);
}

TEST(AdamW, RefusesBetaOfOne) {
  Bench bench;
  const Buffer a = bench.allocate(1), b = bench.allocate(1), c = bench.allocate(1);
  const Buffer grads = bench.allocate(1);
  AdamWStep step = kStep;
  step.beta2 = 1.0;
  EXPECT_THROW(adamw_step(a.view(), b.view(), c.view(), grads.view(), step, *bench.stream),
               UsageError);
}

}  // namespace
}  // namespace zero3::test
