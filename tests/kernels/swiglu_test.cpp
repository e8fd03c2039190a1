#include <zero3/swiglu.h>

#include <gtest/gtest.h>

#include "data/torch_reference.inc"
#include "values.h"

namespace zero3::test {
namespace {

double silu(double x) {
  return x / (1.0 + std::exp(-x));
}

template <class T>
std::vector<T> forward(Bench& bench, const std::vector<T>& gate, const std::vector<T>& up) {
  const Buffer g = bench.upload(gate), u = bench.upload(up);
  const Buffer out = bench.allocate(static_cast<std::int64_t>(gate.size()), kDTypeOf<T>);
  swiglu_forward(out.view(), g.view(), u.view(), *bench.stream);
  return bench.download<T>(out.view());
}

template <class T>
struct Gradients {
  std::vector<T> gate, up, product;
};

template <class T>
Gradients<T> backward(Bench& bench, const std::vector<T>& d_out, const std::vector<T>& gate,
                      const std::vector<T>& up) {
  const auto count = static_cast<std::int64_t>(gate.size());
  const Buffer d = bench.upload(d_out), g = bench.upload(gate), u = bench.upload(up);
  const Buffer d_gate = bench.allocate(count, kDTypeOf<T>);
  const Buffer d_up = bench.allocate(count, kDTypeOf<T>);
  const Buffer product = bench.allocate(count, kDTypeOf<T>);
  swiglu_backward(d_gate.view(), d_up.view(), product.view(), d.view(), g.view(), u.view(),
                  *bench.stream);
  return {bench.download<T>(d_gate.view()), bench.download<T>(d_up.view()),
          bench.download<T>(product.view())};
}

TEST(Swiglu, ForwardMatchesDouble) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t count : kSizes) {
    const auto gate = normal_values(count, 1, 3.0F), up = normal_values(count, 2);
    std::vector<double> want;
    for (std::size_t i = 0; i < gate.size(); ++i) want.push_back(silu(gate[i]) * up[i]);
    EXPECT_LT(relative_error(forward(bench, gate, up), want, 1e-30), 5e-7) << count;
  }
}

TEST(Swiglu, LargeGatesNeitherOverflowNorLoseTheirSign) {
  Bench bench;
  const std::vector<float> gate = {-1000.0F, -100.0F, -90.0F, 90.0F, 100.0F, 1e38F, 0.0F, -0.0F};
  const auto out = forward(bench, gate, std::vector<float>(gate.size(), 1.0F));
  for (std::size_t i = 0; i < gate.size(); ++i) {
    EXPECT_NEAR(out[i], gate[i] > 0 ? gate[i] : 0.0F, 1e-30F);
    EXPECT_EQ(std::signbit(out[i]), std::signbit(gate[i])) << gate[i];
  }
}

TEST(Swiglu, ForwardMatchesTorch) {
  namespace torch = torch_reference;
  Bench bench;
  const auto out = forward(bench, torch::kSwigluGate, torch::kSwigluUp);
  const std::vector<double> want(torch::kSwigluOut.begin(), torch::kSwigluOut.end());
  EXPECT_LT(relative_error(out, want), 3e-7);
}

TEST(Swiglu, BackwardMatchesTorch) {
  namespace torch = torch_reference;
  Bench bench;
  const auto d = backward(bench, torch::kSwigluDout, torch::kSwigluGate, torch::kSwigluUp);
  const std::vector<double> d_gate(torch::kSwigluDgate.begin(), torch::kSwigluDgate.end());
  const std::vector<double> d_up(torch::kSwigluDup.begin(), torch::kSwigluDup.end());
  EXPECT_LT(relative_error(d.gate, d_gate), 5e-7);
  EXPECT_LT(relative_error(d.up, d_up), 5e-7);
}

TEST(Swiglu, BackwardMatchesFiniteDifferences) {
  Bench bench(DeviceKind::kCpu, 2);
  const auto gate = normal_values(67, 1, 2.0F), up = normal_values(67, 2), d = normal_values(67, 3);
  const auto loss = [&](const auto& g, const auto& u) {
    double sum = 0;
    for (std::size_t i = 0; i < d.size(); ++i) {
      sum += static_cast<double>(d[i]) * silu(g[i]) * static_cast<double>(u[i]);
    }
    return sum;
  };
  const Gradients<float> got = backward(bench, d, gate, up);
  const auto by_gate = [&](const std::vector<double>& g) { return loss(g, up); };
  const auto by_up = [&](const std::vector<double>& u) { return loss(gate, u); };
  EXPECT_LT(relative_error(got.gate, finite_differences(gate, by_gate)), 1e-6);
  EXPECT_LT(relative_error(got.up, finite_differences(up, by_up)), 1e-6);
}

TEST(Swiglu, BackwardEdgeSizesMatchTheFormula) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t count : kSizes) {
    const auto gate = normal_values(count, 1, 3.0F), up = normal_values(count, 2);
    const auto d = normal_values(count, 3);
    std::vector<double> want;
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const double s = 1.0 / (1.0 + std::exp(-static_cast<double>(gate[i])));
      want.push_back(static_cast<double>(d[i]) * up[i] * s * (1.0 + gate[i] * (1.0 - s)));
    }
    EXPECT_LT(relative_error(backward(bench, d, gate, up).gate, want), 1e-6) << count;
  }
}

TEST(Swiglu, ProductIsTheForwardResult) {
  Bench bench;
  const auto gate = normal_values(1025, 1), up = normal_values(1025, 2), d = normal_values(1025, 3);
  EXPECT_EQ(bits_of(backward(bench, d, gate, up).product), bits_of(forward(bench, gate, up)));
}

TEST(Swiglu, Bf16IsComputedInFp32AndRoundedOnce) {
  Bench bench;
  const auto gate = convert<BFloat16>(normal_values(1025, 1));
  const auto up = convert<BFloat16>(normal_values(1025, 2));
  const auto d = convert<BFloat16>(normal_values(1025, 3));
  EXPECT_EQ(bits_of(forward(bench, gate, up)),
            bits_of(convert<BFloat16>(forward(bench, convert<float>(gate), convert<float>(up)))));
  const Gradients<BFloat16> narrow = backward(bench, d, gate, up);
  const Gradients<float> wide =
      backward(bench, convert<float>(d), convert<float>(gate), convert<float>(up));
  EXPECT_EQ(bits_of(narrow.gate), bits_of(convert<BFloat16>(wide.gate)));
  EXPECT_EQ(bits_of(narrow.up), bits_of(convert<BFloat16>(wide.up)));
  EXPECT_EQ(bits_of(narrow.product), bits_of(convert<BFloat16>(wide.product)));
}

TEST(Swiglu, ForwardOutMayBeGateOrUp) {
  SteppedBench stepped;
  Bench& bench = stepped.bench;
  const auto gate = normal_values(1025, 1), up = normal_values(1025, 2);
  const auto want = forward(bench, gate, up);
  const Buffer g = bench.upload(gate), u = bench.upload(up);
  swiglu_forward(u.view(), g.view(), u.view(), *bench.stream);
  EXPECT_EQ(bits_of(bench.download<float>(u.view())), bits_of(want));
  const Buffer v = bench.upload(up);
  swiglu_forward(g.view(), g.view(), v.view(), *bench.stream);
  EXPECT_EQ(bits_of(bench.download<float>(g.view())), bits_of(want));
}

TEST(Swiglu, BackwardMayOverwriteItsInputs) {
  SteppedBench stepped;
  Bench& bench = stepped.bench;
  const auto gate = normal_values(40001, 1), up = normal_values(40001, 2);
  const auto d_out = normal_values(40001, 3);
  const Gradients<float> want = backward(bench, d_out, gate, up);
  const Buffer d = bench.upload(d_out), g = bench.upload(gate), u = bench.upload(up);
  swiglu_backward(g.view(), u.view(), d.view(), d.view(), g.view(), u.view(), *bench.stream);
  EXPECT_EQ(bits_of(bench.download<float>(g.view())), bits_of(want.gate));
  EXPECT_EQ(bits_of(bench.download<float>(u.view())), bits_of(want.up));
  EXPECT_EQ(bits_of(bench.download<float>(d.view())), bits_of(want.product));
}

TEST(Swiglu, GateGradientMayBeTheOutputGradient) {
  SteppedBench stepped;
  Bench& bench = stepped.bench;
  const auto gate = normal_values(1025, 1), up = normal_values(1025, 2);
  const auto d_out = normal_values(1025, 3);
  const Gradients<float> want = backward(bench, d_out, gate, up);
  const Buffer d = bench.upload(d_out), g = bench.upload(gate), u = bench.upload(up);
  swiglu_backward(d.view(), u.view(), {}, d.view(), g.view(), u.view(), *bench.stream);
  EXPECT_EQ(bits_of(bench.download<float>(d.view())), bits_of(want.gate));
  EXPECT_EQ(bits_of(bench.download<float>(u.view())), bits_of(want.up));
}

TEST(Swiglu, SameBitsForAnyThreads) {
  expect_same_bits_for_any_threads([](Bench& bench) {
    return forward(bench, normal_values(70001, 1), normal_values(70001, 2));
  });
}

TEST(Swiglu, SameBitsOnEveryDevice) {
  expect_same_bits_on_every_device([](Bench& bench) {
    return backward(bench, normal_values(1025, 3), normal_values(1025, 1), normal_values(1025, 2))
        .gate;
  });
}

TEST(Swiglu, RefusesUnequalSizes) {
  Bench bench;
  const Buffer a = bench.allocate(8), b = bench.allocate(8), c = bench.allocate(9);
  EXPECT_THROW(swiglu_forward(a.view(), b.view(), c.view(), *bench.stream), UsageError);
}

TEST(Swiglu, RefusesMixedTypes) {
  Bench bench;
  const Buffer a = bench.allocate(8), b = bench.allocate(8, DType::kBF16);
  EXPECT_THROW(swiglu_forward(a.view(), a.view(), b.view(), *bench.stream), UsageError);
}

TEST(Swiglu, RefusesOneBufferForTwoGradients) {
  Bench bench;
  const Buffer a = bench.allocate(8), b = bench.allocate(8), c = bench.allocate(8);
  const Buffer d = bench.allocate(8);
  EXPECT_THROW(swiglu_backward(d.view(), d.view(), {}, a.view(), b.view(), c.view(), *bench.stream),
               UsageError);
}

}  // namespace
}  // namespace zero3::test
