#include <zero3/sgd.h>

#include <gtest/gtest.h>

#include "values.h"

namespace zero3::test {
namespace {

constexpr SgdStep kStep = {.learning_rate = 0.1, .weight_decay = 0.01, .grad_scale = 0.5};

std::vector<float> run(Bench& bench, std::int64_t count) {
  const Buffer w = bench.upload(normal_values(count, 1));
  const Buffer g = bench.upload(normal_values(count, 2));
  sgd_step(w.view(), g.view(), kStep, *bench.stream);
  return bench.download<float>(w.view());
}

TEST(Sgd, EqualsAScalarLoopInEveryBit) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t count : kSizes) {
    std::vector<float> want = normal_values(count, 1);
    const std::vector<float> g = normal_values(count, 2);
    for (std::size_t i = 0; i < want.size(); ++i) {
      want[i] -= 0.1F * (g[i] * 0.5F + 0.01F * want[i]);
    }
    EXPECT_EQ(bits_of(run(bench, count)), bits_of(want)) << count;
  }
}

TEST(Sgd, SameBitsForAnyThreads) {
  expect_same_bits_for_any_threads([](Bench& bench) { return run(bench, 70001); });
}

TEST(Sgd, SameBitsOnEveryDevice) {
  expect_same_bits_on_every_device([](Bench& bench) { return run(bench, 1025); });
}

TEST(Sgd, RefusesUnequalSizes) {
  Bench bench;
  const Buffer w = bench.allocate(8), g = bench.allocate(9);
  EXPECT_THROW(sgd_step(w.view(), g.view(), kStep, *bench.stream), UsageError);
}

TEST(Sgd, RefusesOverlap) {
  Bench bench;
  const Buffer w = bench.allocate(8);
  EXPECT_THROW(sgd_step(w.view(), w.view(), kStep, *bench.stream), UsageError);
}

}  // namespace
}  // namespace zero3::test
