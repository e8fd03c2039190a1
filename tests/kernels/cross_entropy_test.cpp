#include <zero3/cross_entropy.h>

#include <gtest/gtest.h>

#include <limits>

#include <support/contains.h>
#include <support/thrown.h>

#include "data/torch_reference.inc"
#include "values.h"

namespace zero3::test {
namespace {

template <class T>
struct Result {
  std::vector<double> loss;
  std::vector<T> gradient;
};

template <class T = float>
Result<T> run(Bench& bench, const std::vector<float>& logits,
              const std::vector<std::int32_t>& targets, const CrossEntropyShape& shape) {
  const Buffer x = bench.upload(logits), t = bench.upload(targets);
  const Buffer loss = bench.allocate(shape.rows, DType::kF64);
  const Buffer d = bench.allocate(shape.rows * shape.vocab, kDTypeOf<T>);
  cross_entropy(loss.view(), d.view(), x.view(), t.view(), shape, *bench.stream);
  return {bench.download<double>(loss.view()), bench.download<T>(d.view())};
}

struct Reference {
  std::vector<double> loss, gradient;
};

Reference reference(const std::vector<float>& logits, const std::vector<std::int32_t>& targets,
                    const CrossEntropyShape& shape) {
  Reference r;
  const auto vocab = static_cast<std::size_t>(shape.vocab);
  for (std::size_t row = 0; row < targets.size(); ++row) {
    const float* x = logits.data() + row * vocab;
    const double largest = *std::max_element(x, x + vocab);
    double sum = 0;
    for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(x[i]) - largest);
    const bool ignored = targets[row] == shape.ignore_index;
    const auto target = static_cast<std::size_t>(ignored ? 0 : targets[row]);
    r.loss.push_back(ignored ? 0.0 : std::log(sum) + largest - static_cast<double>(x[target]));
    for (std::size_t i = 0; i < vocab; ++i) {
      const double p = std::exp(static_cast<double>(x[i]) - largest) / sum;
      const double hit = i == target ? 1.0 : 0.0;
      r.gradient.push_back(ignored ? 0.0 : static_cast<double>(shape.scale) * (p - hit));
    }
  }
  return r;
}

double loss_error(const std::vector<double>& got, const std::vector<double>& want) {
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    worst = std::max(worst, std::abs(got.at(i) - want[i]) / std::max(1.0, std::abs(want[i])));
  }
  return worst;
}

TEST(CrossEntropy, MatchesDouble) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t vocab : {1, 2, 7, 8, 9, 31, 32, 33, 1023, 1024, 1025, 2053, 20011}) {
    const CrossEntropyShape shape = {.rows = 5, .vocab = vocab};
    const auto logits = normal_values(5 * vocab, 1, 4.0F);
    const auto targets = index_values(5, 2, static_cast<std::int32_t>(vocab));
    const Result<float> got = run(bench, logits, targets, shape);
    const Reference want = reference(logits, targets, shape);
    EXPECT_LT(loss_error(got.loss, want.loss), 3e-7) << vocab;
    EXPECT_LT(relative_error(got.gradient, want.gradient, 1e-20), 3e-6) << vocab;
  }
}

TEST(CrossEntropy, MatchesTorch) {
  namespace torch = torch_reference;
  Bench bench;
  const auto got = run(bench, torch::kEntropyLogits, {2, 10, -100, 0}, {.rows = 4, .vocab = 11});
  for (std::size_t row = 0; row < 4; ++row) {
    EXPECT_NEAR(got.loss[row], torch::kEntropyLosses[row], 1e-6) << row;
  }
  const std::vector<double> want(torch::kEntropyDlogits.begin(), torch::kEntropyDlogits.end());
  EXPECT_LT(relative_error(got.gradient, want), 3e-7);
}

TEST(CrossEntropy, GradientMatchesFiniteDifferences) {
  Bench bench;
  const CrossEntropyShape shape = {.rows = 3, .vocab = 17};
  const auto logits = normal_values(51, 1, 2.0F);
  const std::vector<std::int32_t> targets = {3, 16, 0};
  const auto loss = [&](const std::vector<double>& x) {
    double total = 0;
    for (std::size_t row = 0; row < 3; ++row) {
      double sum = 0;
      for (std::size_t i = 0; i < 17; ++i) sum += std::exp(x[row * 17 + i]);
      total += std::log(sum) - x[row * 17 + static_cast<std::size_t>(targets[row])];
    }
    return total;
  };
  const auto want = finite_differences(logits, loss);
  EXPECT_LT(relative_error(run(bench, logits, targets, shape).gradient, want), 1e-6);
}

/// Two logits, 0 and x: the gradient for the second is e^x / (1 + e^x).
TEST(CrossEntropy, ExponentialsAreAccurateDownToTheSmallest) {
  Bench bench(DeviceKind::kCpu, 2);
  constexpr std::int64_t kRows = 86000;
  std::vector<float> logits;
  for (std::int64_t row = 0; row < kRows; ++row) {
    logits.push_back(0.0F);
    logits.push_back(static_cast<float>(row) * -0.001F);
  }
  const CrossEntropyShape shape = {.rows = kRows, .vocab = 2};
  const std::vector<std::int32_t> targets(kRows);
  const Reference want = reference(logits, targets, shape);
  const Result<float> got = run(bench, logits, targets, shape);
  std::vector<float> seconds;
  std::vector<double> want_seconds;
  for (std::size_t row = 0; row < kRows; ++row) {
    seconds.push_back(got.gradient[2 * row + 1]);
    want_seconds.push_back(want.gradient[2 * row + 1]);
  }
  EXPECT_LT(relative_error(seconds, want_seconds, 1e-37), 3e-7);
}

TEST(CrossEntropy, LogitsFarApartGiveZerosAndNoOverflow) {
  Bench bench;
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {3e38F, -3e38F, -inf, 0.0F, 100.0F, 12.0F};
  const auto got = run(bench, logits, {0, 1}, {.rows = 2, .vocab = 3});
  EXPECT_EQ(got.loss[0], 0.0);
  EXPECT_EQ(got.gradient, (std::vector<float>{0, 0, 0, 0, 0, 0}));
}

TEST(CrossEntropy, AnUnlikelyTargetHasItsFullLoss) {
  Bench bench;
  const auto got = run(bench, {500.0F, 0.0F}, {1}, {.rows = 1, .vocab = 2});
  EXPECT_EQ(got.loss[0], 500.0);
  EXPECT_EQ(got.gradient, (std::vector<float>{1.0F, -1.0F}));
}

TEST(CrossEntropy, ANanShowsInTheLossAndTheGradient) {
  Bench bench;
  std::vector<float> logits = normal_values(100, 1);
  logits[41] = std::numeric_limits<float>::quiet_NaN();
  const auto got = run(bench, logits, {0, 1}, {.rows = 2, .vocab = 50});
  EXPECT_TRUE(std::isnan(got.loss[0]));
  EXPECT_TRUE(std::isnan(got.gradient[7]));
  EXPECT_TRUE(std::isfinite(got.loss[1]));
}

TEST(CrossEntropy, ScaleIsAFactorOfTheGradientAlone) {
  Bench bench;
  const auto logits = normal_values(3 * 40, 1);
  const auto plain = run(bench, logits, {1, 2, 3}, {.rows = 3, .vocab = 40});
  const auto scaled = run(bench, logits, {1, 2, 3}, {.rows = 3, .vocab = 40, .scale = 1024.0F});
  EXPECT_EQ(scaled.loss, plain.loss);
  std::vector<float> want;
  for (const float value : plain.gradient) want.push_back(value * 1024.0F);
  EXPECT_EQ(scaled.gradient, want);
}

TEST(CrossEntropy, IgnoredRowsCountForNothing) {
  Bench bench;
  const auto got =
      run(bench, normal_values(3 * 40, 1), {1, 7, 3}, {.rows = 3, .vocab = 40, .ignore_index = 7});
  EXPECT_EQ(got.loss[1], 0.0);
  EXPECT_TRUE(std::all_of(got.gradient.begin() + 40, got.gradient.begin() + 80,
                          [](float value) { return value == 0.0F; }));
  EXPECT_NE(got.loss[2], 0.0);
}

TEST(CrossEntropy, TheLossIsTheSameWithoutAGradient) {
  Bench bench(DeviceKind::kCpu, 2);
  const auto logits = normal_values(4 * 2053, 1, 3.0F);
  const std::vector<std::int32_t> targets = {5, -100, 2052, 0};
  const CrossEntropyShape shape = {.rows = 4, .vocab = 2053};
  const Buffer x = bench.upload(logits), t = bench.upload(targets);
  const Buffer loss = bench.allocate(4, DType::kF64);
  cross_entropy(loss.view(), {}, x.view(), t.view(), shape, *bench.stream);
  EXPECT_EQ(bits_of(bench.download<double>(loss.view())),
            bits_of(run(bench, logits, targets, shape).loss));
}

TEST(CrossEntropy, TheGradientMayReplaceTheLogits) {
  SteppedBench stepped;
  Bench& bench = stepped.bench;
  const auto logits = normal_values(4 * 2053, 1, 3.0F);
  const std::vector<std::int32_t> targets = {5, -100, 2052, 0};
  const CrossEntropyShape shape = {.rows = 4, .vocab = 2053};
  const Result<float> want = run(bench, logits, targets, shape);
  const Buffer x = bench.upload(logits), t = bench.upload(targets);
  const Buffer loss = bench.allocate(4, DType::kF64);
  cross_entropy(loss.view(), x.view(), x.view(), t.view(), shape, *bench.stream);
  EXPECT_EQ(bits_of(bench.download<float>(x.view())), bits_of(want.gradient));
  EXPECT_EQ(bits_of(bench.download<double>(loss.view())), bits_of(want.loss));
}

TEST(CrossEntropy, ABf16GradientIsTheFp32OneRounded) {
  Bench bench(DeviceKind::kCpu, 2);
  const auto logits = normal_values(4 * 2053, 1, 3.0F);
  const std::vector<std::int32_t> targets = {5, -100, 2052, 0};
  const CrossEntropyShape shape = {.rows = 4, .vocab = 2053};
  const Result<float> wide = run(bench, logits, targets, shape);
  const Result<BFloat16> narrow = run<BFloat16>(bench, logits, targets, shape);
  EXPECT_EQ(bits_of(narrow.gradient), bits_of(convert<BFloat16>(wide.gradient)));
  EXPECT_EQ(bits_of(narrow.loss), bits_of(wide.loss));
}

TEST(CrossEntropy, NoRowsAreNoWork) {
  Bench bench;
  EXPECT_TRUE(run(bench, {}, {}, {.rows = 0, .vocab = 5}).loss.empty());
}

TEST(CrossEntropy, SameBitsForAnyThreads) {
  const auto logits = normal_values(50 * 1031, 1, 3.0F);
  const auto targets = index_values(50, 2, 1031);
  const CrossEntropyShape shape = {.rows = 50, .vocab = 1031};
  expect_same_bits_for_any_threads(
      [&](Bench& bench) { return run(bench, logits, targets, shape).loss; });
  expect_same_bits_for_any_threads(
      [&](Bench& bench) { return run<BFloat16>(bench, logits, targets, shape).gradient; });
}

TEST(CrossEntropy, SameBitsOnEveryDevice) {
  expect_same_bits_on_every_device([&](Bench& bench) {
    return run(bench, normal_values(5 * 33, 1), {0, 32, -100, 7, 8}, {.rows = 5, .vocab = 33})
        .gradient;
  });
}

TEST(CrossEntropy, TheFirstTargetOutsideTheVocabularyIsNamed) {
  for (const int threads : {1, 2}) {
    Bench bench(DeviceKind::kCpu, threads);
    auto targets = index_values(40, 2, 9);
    targets[13] = 9;
    targets[30] = -1;
    const auto error = thrown<UsageError>(
        [&] { run(bench, normal_values(360, 1), targets, {.rows = 40, .vocab = 9}); });
    EXPECT_TRUE(contains(error, {"cross_entropy", "row 13", "target 9", "-100"}));
  }
}

TEST(CrossEntropy, RefusesSizesThatDoNotFit) {
  Bench bench;
  const auto error = thrown<UsageError>([&] {
    run(bench, normal_values(19, 1), {0, 1}, {.rows = 2, .vocab = 10});
  });
  EXPECT_TRUE(contains(error, {"cross_entropy", "logits", "19", "20"}));
}

}  // namespace
}  // namespace zero3::test
