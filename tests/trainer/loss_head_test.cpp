#include <gtest/gtest.h>

#include <cmath>

#include <zero3/trainer/loss_head.h>

#include "support/backends.h"
#include "support/contains.h"
#include "support/thrown.h"
#include "support/toy_llama.h"

namespace zero3::trainer {
namespace {

using test::formula_value;

constexpr std::int64_t kWidth = 24, kVocab = 37;

std::vector<float> values_of(const char* name, std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(formula_value(name, i)));
  return values;
}

struct Result {
  double loss = 0;
  std::vector<float> d_hidden, d_norm, d_table;
};

/// The head on `targets.size()` rows of the formula's values.
Result run_head(const std::vector<std::int32_t>& targets, std::int64_t granule_rows,
                float loss_scale = 1, int threads = 1) {
  test::Bench bench(DeviceKind::kCpu, threads);
  const auto rows = static_cast<std::int64_t>(targets.size());
  const LossHead head({.rows = std::max<std::int64_t>(rows, 1),
                       .width = kWidth,
                       .vocab = kVocab,
                       .granule_rows = granule_rows,
                       .threads = threads});
  Gemm gemm(*bench.stream, granule_rows);
  Buffer hidden = bench.upload(values_of("hidden", rows * kWidth));
  Buffer norm = bench.upload(values_of("norm.weight", kWidth));
  Buffer table = bench.upload(values_of("table", kVocab * kWidth));
  Buffer d_norm = bench.upload(std::vector<float>(kWidth, 0));
  Buffer d_table = bench.upload(std::vector<float>(kVocab * kWidth, 0));
  Buffer target_buffer = bench.upload(targets);
  Buffer row_losses = bench.allocate(rows, DType::kF64), loss = bench.allocate(1, DType::kF64);
  Buffer workspace = bench.allocate(head.workspace_bytes().count(), DType::kU8);
  head.train({.stream = *bench.stream,
              .gemm = gemm,
              .workspace = workspace.view(),
              .targets = target_buffer.view(),
              .row_losses = row_losses.view(),
              .loss_sum = loss.view()},
             {.norm = norm.view(), .table = table.view()},
             {.norm = d_norm.view(), .table = d_table.view()}, hidden.view(), loss_scale);
  return {.loss = bench.download<double>(loss.view())[0],
          .d_hidden = bench.download<float>(hidden.view()),
          .d_norm = bench.download<float>(d_norm.view()),
          .d_table = bench.download<float>(d_table.view())};
}

std::vector<std::int32_t> targets_of(std::int64_t rows) {
  return test::toy_tokens({.batch = 1, .seq = rows}, kVocab).targets;
}

TEST(LossHead, ScratchIsOneGranuleOfLogitsHoweverManyRows) {
  LossHeadShape shape = {.rows = 256, .width = 64, .vocab = 1000, .granule_rows = 256};
  const Bytes one_granule = LossHead(shape).workspace_bytes();
  shape.rows = 1 << 20;
  EXPECT_EQ(LossHead(shape).workspace_bytes(), one_granule);
  EXPECT_GE(one_granule, Bytes(256 * 1000 * 4));
  shape.rows = 16;
  EXPECT_LT(LossHead(shape).workspace_bytes(), one_granule);
}

TEST(LossHead, LossScaleIsAFactorOfTheGradientsAlone) {
  const Result plain = run_head(targets_of(11), 4);
  // Powers of two change exponents only.
  for (const float scale : {8.0F, 0.25F, 65536.0F}) {
    const Result scaled = run_head(targets_of(11), 4, scale);
    EXPECT_EQ(scaled.loss, plain.loss);
    const auto expect_scaled = [&](const std::vector<float>& got, const std::vector<float>& want) {
      for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], scale * want[i]) << i;
    };
    expect_scaled(scaled.d_table, plain.d_table);
    expect_scaled(scaled.d_norm, plain.d_norm);
    expect_scaled(scaled.d_hidden, plain.d_hidden);
  }
}

TEST(LossHead, IgnoredRowsLeaveNothing) {
  const Result result = run_head(std::vector<std::int32_t>(6, kIgnoreToken), 4);
  EXPECT_EQ(result.loss, 0);
  EXPECT_EQ(result.d_hidden, std::vector<float>(6 * kWidth, 0));
  EXPECT_EQ(result.d_norm, std::vector<float>(kWidth, 0));
  EXPECT_EQ(result.d_table, std::vector<float>(kVocab * kWidth, 0));
}

// H6: unequal numbers of targets that count per granule, and a granule without any.
TEST(LossHead, AGranuleWithoutTargetsAddsNothingToTheOthers) {
  std::vector<std::int32_t> targets = targets_of(12);
  for (std::size_t i = 4; i < 8; ++i) targets[i] = kIgnoreToken;
  targets[9] = kIgnoreToken;
  const Result whole = run_head(targets, 256), tiled = run_head(targets, 4);
  EXPECT_NEAR(tiled.loss, whole.loss, 1e-6 * whole.loss);
  for (std::size_t i = 0; i < whole.d_hidden.size(); ++i) {
    ASSERT_NEAR(tiled.d_hidden[i], whole.d_hidden[i], 1e-6) << i;
    const bool masked = i / kWidth >= 4 && i / kWidth < 8;
    ASSERT_EQ(tiled.d_hidden[i] == 0 && masked, masked) << i;
  }
  for (std::size_t i = 0; i < whole.d_table.size(); ++i)
    ASSERT_NEAR(tiled.d_table[i], whole.d_table[i], 2e-6) << i;
}

TEST(LossHead, NoRowsHaveLossZero) {
  EXPECT_EQ(run_head({}, 4).loss, 0);
}

TEST(LossHead, GranulesAddUpAsWholesDo) {
  const Result whole = run_head(targets_of(11), 256);
  for (const std::int64_t granule : {1, 3, 10, 11, 12}) {
    const Result result = run_head(targets_of(11), granule);
    EXPECT_NEAR(result.loss, whole.loss, 1e-6 * whole.loss) << granule;
    for (std::size_t i = 0; i < whole.d_table.size(); ++i) {
      // A dozen fp32 additions of values up to 1, in another order.
      ASSERT_NEAR(result.d_table[i], whole.d_table[i], 2e-6) << granule;
    }
  }
}

TEST(LossHead, ThreadsDoNotChangeTheBits) {
  const Result one = run_head(targets_of(61), 16, 1, 1), two = run_head(targets_of(61), 16, 1, 2);
  EXPECT_EQ(one.loss, two.loss);
  EXPECT_EQ(one.d_hidden, two.d_hidden);
  EXPECT_EQ(one.d_norm, two.d_norm);
  EXPECT_EQ(one.d_table, two.d_table);
}

TEST(LossHead, MoreRowsThanPlannedAreRefused) {
  test::Bench bench;
  const LossHead head({.rows = 4, .width = kWidth, .vocab = kVocab});
  Gemm gemm(*bench.stream);
  Buffer hidden = bench.allocate(5 * kWidth);
  const std::string error = test::thrown<UsageError>([&] {
    head.evaluate({.stream = *bench.stream,
                   .gemm = gemm,
                   .workspace = {},
                   .targets = {},
                   .row_losses = {},
                   .loss_sum = {}},
                  {}, hidden.view());
  });
  EXPECT_TRUE(test::contains(error, {"5", "4", "planned"}));
}

}  // namespace
}  // namespace zero3::trainer
