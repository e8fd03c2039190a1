#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include <zero3/copy.h>
#include <zero3/engine.h>
#include <zero3/rope.h>
#include <zero3/trainer/llama_block.h>

#include "support/backends.h"
#include "support/contains.h"
#include "support/reference_llama.h"
#include "support/thrown.h"
#include "support/toy_llama.h"
#include "trainer/block_run.h"

namespace zero3::trainer {
namespace {

using test::contains;
using test::formula_word;
using test::ReferenceLlama;
using test::thrown;
using test::toy_config;

class LlamaBlockFeature : public BlockFeature {
 protected:
  [[nodiscard]] ReferenceLlama reference(Engine& engine) const {
    ReferenceLlama result(config);
    test::write_reference(result, engine.groups());
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(, LlamaBlockFeature, ::testing::ValuesIn(kFeatures),
                         [](const auto& test) { return test.param.name; });

/// Largest error relative to the largest value.
double max_error(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error = std::max(error, std::abs(double{got[i]} - want[i]));
    largest = std::max(largest, std::abs(want[i]));
  }
  return error / largest;
}

// A value passes a dozen sums of tens of fp32 terms, each with a relative error of some 6e-8 ·
// sqrt(30).
constexpr double kForwardTolerance = 1.5e-6;
// Twice as many for a gradient, and cancellation in the norms.
constexpr double kGradientTolerance = 3e-6;

TEST_P(LlamaBlockFeature, ForwardEqualsDoubleReference) {
  BlockRun run(config);
  const std::vector<float> x = token_values("x", kTokens.rows() * config.hidden);
  const std::vector<double> want = reference(run.engine()).block(0, {x.begin(), x.end()}, kTokens);
  EXPECT_LT(max_error(run.forward(), want), kForwardTolerance);
}

TEST_P(LlamaBlockFeature, GradientsEqualDifferencesOfDoubleReference) {
  BlockRun run(config);
  const std::int64_t size = kTokens.rows() * config.hidden;
  const std::vector<float> x = token_values("x", size), g = token_values("g", size);
  run.forward();
  const Backward got = run.backward(g);

  ReferenceLlama model = reference(run.engine());
  std::vector<double> in(x.begin(), x.end());
  const auto value = [&] {
    const std::vector<double> y = model.block(0, in, kTokens);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * double{g[i]};
    return sum;
  };
  const auto expect_near = [&](const std::string& name, const std::vector<float>& gradient,
                               std::vector<double>& at) {
    // A prime stride visits every column; small tensors are checked whole.
    const std::size_t stride = at.size() < 40 ? 1 : 17;
    std::vector<float> some;
    std::vector<double> want;
    for (std::size_t i = 0; i < at.size(); i += stride) {
      some.push_back(gradient[i]);
      want.push_back(test::central_difference(at[i], value));
    }
    EXPECT_LT(max_error(some, want), kGradientTolerance) << name;
  };
  expect_near("x", got.gradient, in);
  for (auto& [name, values] : model.params) expect_near(name, got.params.at(name), values);
}

TEST_P(LlamaBlockFeature, RecomputedBackwardIsBitwiseEqual) {
  const std::vector<float> g = token_values("g", kTokens.rows() * config.hidden);
  BlockRun plain(config), recomputed(config);
  plain.forward();
  const Backward want = plain.backward(g);
  recomputed.forward(Pass::kInference);
  recomputed.forward(Pass::kRecompute);
  const Backward got = recomputed.backward(g);
  EXPECT_EQ(got.gradient, want.gradient);
  EXPECT_EQ(got.params, want.params);
}

TEST_P(LlamaBlockFeature, AnyGranuleGivesTheGradient) {
  const std::vector<float> g = token_values("g", kTokens.rows() * config.hidden);
  BlockRun whole(config, 256);
  whole.forward();
  const Backward want = whole.backward(g);
  const std::vector<double> want_gradient(want.gradient.begin(), want.gradient.end());
  for (const std::int64_t granule : {1, 3, 13, 14, 15}) {
    BlockRun run(config, granule);
    run.forward();
    const Backward got = run.backward(g);
    EXPECT_LT(max_error(got.gradient, want_gradient), kGradientTolerance) << granule;
    for (const auto& [name, values] : want.params) {
      EXPECT_LT(max_error(got.params.at(name), {values.begin(), values.end()}), kGradientTolerance)
          << name << ", granules of " << granule;
    }
  }
}

TEST(LlamaBlock, ParameterGradientsAreAdded) {
  const LlamaConfig config = toy_config();
  const std::vector<float> g = token_values("g", kTokens.rows() * config.hidden);
  BlockRun one(config), two(config);
  one.forward();
  two.forward();
  const Backward once = one.backward(g), twice = two.backward(g, 2);
  EXPECT_EQ(twice.gradient, once.gradient);
  for (const auto& [name, values] : once.params) {
    std::vector<double> doubled;
    for (const float value : values) doubled.push_back(2 * double{value});
    EXPECT_LT(max_error(twice.params.at(name), doubled), 1e-6) << name;
  }
}

TEST(LlamaBlock, KeepsOnlyWhatTheBackwardNeeds) {
  LlamaConfig config = toy_config();
  config.hidden = 32;
  config.intermediate = 48;
  set_head_dim(config, 8);
  const RopeViews rope;
  // q, attention and the residual; k and v; gate and up; the log-sum-exps. Multiples of 64 bytes
  // all.
  const std::int64_t rows = 128, floats = 3 * 32 + 2 * 16 + 2 * 48 + 4;
  EXPECT_EQ(LlamaBlock(config, 0, {}, rope).memory({.batch = 2, .seq = 64}).saved,
            Bytes(rows * floats * 4));
  const std::int64_t halves = floats - 4;
  EXPECT_EQ(
      LlamaBlock(config, 0, {.dtype = DType::kBF16}, rope).memory({.batch = 2, .seq = 64}).saved,
      Bytes(rows * (halves * 2 + 4 * 4)));
  config.qk_norm = true;
  EXPECT_EQ(LlamaBlock(config, 0, {}, rope).memory({.batch = 2, .seq = 64}).saved,
            Bytes(rows * floats * 4));
}

TEST(LlamaBlock, NamesAreThoseOfHuggingFace) {
  LlamaConfig config = toy_config();
  config.qkv_bias = config.output_bias = config.qk_norm = true;
  const RopeViews rope;
  std::vector<std::string> names;
  for (const ParamSpec& param : LlamaBlock(config, 7, {}, rope).group().params) {
    names.push_back(param.name.substr(std::string("model.layers.7.").size()));
  }
  const std::vector<std::string> want = {
      "input_layernorm.weight",  "self_attn.q_proj.weight", "self_attn.q_proj.bias",
      "self_attn.k_proj.weight", "self_attn.k_proj.bias",   "self_attn.v_proj.weight",
      "self_attn.v_proj.bias",   "self_attn.q_norm.weight", "self_attn.k_norm.weight",
      "self_attn.o_proj.weight", "self_attn.o_proj.bias",   "post_attention_layernorm.weight",
      "mlp.gate_proj.weight",    "mlp.up_proj.weight",      "mlp.down_proj.weight"};
  EXPECT_EQ(names, want);
}

TEST(LlamaBlock, OnlyMatricesAreDecayed) {
  LlamaConfig config = toy_config();
  config.qkv_bias = config.output_bias = config.qk_norm = true;
  const RopeViews rope;
  for (const ParamSpec& param : LlamaBlock(config, 0, {}, rope).group().params) {
    EXPECT_EQ(param.optimizer_group, param.shape.size() == 2 ? kDecayed : kNotDecayed)
        << param.name;
  }
}

TEST(LlamaBlock, NoTokensGiveNoGradient) {
  BlockRun run(toy_config(), 4, {.batch = 0, .seq = 7});
  EXPECT_TRUE(run.forward().empty());
  for (const auto& [name, values] : run.backward({}).params) {
    EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float v) { return v == 0; })) << name;
  }
}

TEST(LlamaBlock, OneTokenAttendsToItself) {
  BlockRun run(toy_config(), 4, {.batch = 1, .seq = 1});
  ReferenceLlama model(toy_config());
  test::write_reference(model, run.engine().groups());
  const std::vector<float> x = token_values("x", toy_config().hidden);
  EXPECT_LT(max_error(run.forward(), model.block(0, {x.begin(), x.end()}, {.batch = 1, .seq = 1})),
            kForwardTolerance);
}

TEST(LlamaBlock, SequenceLongerThanItsTableIsRefused) {
  BlockRun run(toy_config());
  LayerContext context = run.context();
  context.tokens = {.batch = 1, .seq = 14};
  const std::string error = thrown<UsageError>([&] {
    const Gathered weights = run.engine().gather({0});
    run.block().forward(context, weights, {}, {}, {}, Pass::kInference);
  });
  EXPECT_TRUE(contains(error, {"14", "7", "rotary"}));
}

TEST(LlamaBlock, OtherDtypesAreRefused) {
  const RopeViews rope;
  EXPECT_TRUE(contains(
      thrown<UsageError>([&] { LlamaBlock(toy_config(), 0, {.dtype = DType::kF16}, rope); }),
      {"fp16", "fp32 or bf16"}));
}

}  // namespace
}  // namespace zero3::trainer
