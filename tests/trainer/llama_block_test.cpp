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

namespace zero3::trainer {
namespace {

using test::contains;
using test::formula_value;
using test::formula_word;
using test::ReferenceLlama;
using test::thrown;
using test::toy_config;

constexpr TokenShape kTokens = {.batch = 2, .seq = 7};

std::vector<float> token_values(const char* name, std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(formula_value(name, i)));
  return values;
}

/// What a block's backward gave.
struct Backward {
  std::vector<float> gradient;
  std::map<std::string, std::vector<float>> params;
};

/// Block 0 of a model with the formula's weights, alone in an engine.
class BlockRun {
 public:
  explicit BlockRun(const LlamaConfig& config, std::int64_t granule_rows = 4,
                    TokenShape tokens = kTokens)
      : BlockRun(config, LlamaBlockOptions{.granule_rows = granule_rows}, tokens) {}
  BlockRun(const LlamaConfig& config, const LlamaBlockOptions& options, TokenShape tokens)
      : bench_(DeviceKind::kCpu, 1),
        tokens_(tokens),
        communicator_(make_self_communicator()),
        engine_(*bench_.device, *communicator_,
                {.optimizer_groups = {OptimizerGroup{}, OptimizerGroup{}}}),
        block_(config, 0, options, rope_),
        group_(engine_.add_group(block_.group())),
        size_(tokens.rows() * config.hidden) {
    engine_.build();
    test::for_each_formula_param(engine_.groups(),
                                 [&](const std::string& name, const auto& values) {
                                   engine_.write_parameter(name, values);
                                 });
    const RopeTable table = make_rope_table(config.rope, std::max<std::int64_t>(tokens.seq, 1));
    cos_ = bench_.upload(table.cos);
    sin_ = bench_.upload(table.sin);
    rope_ = {.cos = cos_.view(), .sin = sin_.view()};
    const LayerMemory memory = block_.memory(tokens);
    saved_ = bench_.allocate(memory.saved.count(), DType::kU8);
    workspace_ = bench_.allocate(memory.workspace.count(), DType::kU8);
    in_ = bench_.upload(token_values("x", size_));
    out_ = bench_.allocate(size_);
    gemm_.emplace(engine_.compute(), options.granule_rows);
    engine_.compute().wait(bench_.stream->record());
  }

  std::vector<float> forward(Pass pass = Pass::kTraining) {
    const Gathered weights = engine_.gather(group_);
    block_.forward(context(), weights, in_.view(),
                   pass == Pass::kRecompute ? TensorView() : out_.view(), saved_.view(), pass);
    return pass == Pass::kRecompute ? std::vector<float>() : download(out_.view());
  }

  /// After forward(kTraining or kRecompute): the gradients for one of the output. With more `times`
  /// forward and backward run again into the same parameter gradients.
  Backward backward(const std::vector<float>& output_gradient, int times = 1) {
    MicroStep micro_step = engine_.begin_micro_step();
    Backward result;
    {
      const Gathered weights = engine_.gather(group_);
      const Gradients grads = engine_.grads(group_);
      for (int time = 0; time < times; ++time) {
        if (time > 0) forward();
        Buffer gradient = bench_.upload(output_gradient);
        block_.backward(context(), weights, grads, in_.view(), saved_.view(), gradient.view());
        result.gradient = download(gradient.view());
      }
      const GroupSpec spec = block_.group();
      for (std::size_t i = 0; i < spec.params.size(); ++i) {
        result.params[spec.params[i].name] = download(grads[static_cast<int>(i)]);
      }
    }
    micro_step.end();
    return result;
  }

  [[nodiscard]] LayerContext context() {
    return {tokens_, engine_.compute(), *gemm_, workspace_.view(), place, true};
  }
  void set_input(const std::vector<float>& values) {
    copy_from_host(in_.view(), values.data(), engine_.compute());
    engine_.compute().synchronize();
  }
  BatchPlace place;
  LlamaBlock& block() { return block_; }
  Engine& engine() { return engine_; }

 private:
  std::vector<float> download(const TensorView& view) {
    std::vector<float> values(static_cast<std::size_t>(view.count()));
    copy_to_host(values.data(), view, engine_.compute());
    engine_.compute().synchronize();
    return values;
  }

  test::Bench bench_;
  TokenShape tokens_;
  std::unique_ptr<Communicator> communicator_;
  Engine engine_;
  RopeViews rope_;
  LlamaBlock block_;
  GroupId group_;
  std::int64_t size_;
  Buffer cos_, sin_, saved_, workspace_, in_, out_;
  std::optional<Gemm> gemm_;
};

struct Feature {
  const char* name;
  void (*apply)(LlamaConfig&);
};
void set_head_dim(LlamaConfig& config, std::int64_t head_dim) {
  config.head_dim = config.rope.head_dim = head_dim;
}
const Feature kFeatures[] = {
    {"Grouped", [](LlamaConfig&) {}},
    {"MultiHead", [](LlamaConfig& c) { c.kv_heads = c.heads; }},
    {"MultiQuery", [](LlamaConfig& c) { c.kv_heads = 1; }},
    {"QkvBias", [](LlamaConfig& c) { c.qkv_bias = true; }},
    {"AllBiases", [](LlamaConfig& c) { c.qkv_bias = c.output_bias = true; }},
    {"QkNorm", [](LlamaConfig& c) { c.qk_norm = true; }},
    {"WideHeads",
     [](LlamaConfig& c) {
       set_head_dim(c, 10);
       c.qk_norm = c.qkv_bias = true;
     }},
    {"NarrowHeads", [](LlamaConfig& c) { set_head_dim(c, 2); }},
};
void PrintTo(const Feature& feature, std::ostream* out) {
  *out << feature.name;
}

class LlamaBlockFeature : public ::testing::TestWithParam<Feature> {
 protected:
  LlamaBlockFeature() { GetParam().apply(config); }
  [[nodiscard]] ReferenceLlama reference(Engine& engine) const {
    ReferenceLlama result(config);
    test::write_reference(result, engine.groups());
    return result;
  }
  LlamaConfig config = toy_config();
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

// H2: tiles of one granule, of several, with a short one at the end, and a single one.
TEST_P(LlamaBlockFeature, TilesChangeNoBit) {
  constexpr TokenShape kMany = {.batch = 3, .seq = 11};
  const std::vector<float> g = token_values("g", kMany.rows() * config.hidden);
  const auto run = [&](const char* tile, bool recompute) {
    BlockRun block(config,
                   LlamaBlockOptions{
                       .granule_rows = 4, .tile = parse_tile_policy(tile), .recompute = recompute},
                   kMany);
    const std::vector<float> out = block.forward(recompute ? Pass::kInference : Pass::kTraining);
    if (recompute) block.forward(Pass::kRecompute);
    return std::pair(out, block.backward(g));
  };
  const auto want = run("none", false);
  for (const bool recompute : {false, true}) {
    for (const char* tile :
         {"none", "rows=1", "rows=8", "rows=32", "count=5", "auto", "seq/hidden"}) {
      const auto got = run(tile, recompute);
      EXPECT_EQ(got.first, want.first) << tile << recompute;
      EXPECT_EQ(got.second.gradient, want.second.gradient) << tile << recompute;
      EXPECT_EQ(got.second.params, want.second.params) << tile << recompute;
    }
  }
}

// H5: recomputation and tiles see the masks of the forward.
TEST_P(LlamaBlockFeature, DropoutIsTheSameInTilesAndRecomputation) {
  constexpr TokenShape kMany = {.batch = 3, .seq = 11};
  const std::vector<float> g = token_values("g", kMany.rows() * config.hidden);
  const auto run = [&](const char* tile, bool recompute, std::int64_t step) {
    BlockRun block(config,
                   LlamaBlockOptions{.granule_rows = 4,
                                     .tile = parse_tile_policy(tile),
                                     .recompute = recompute,
                                     .dropout = 0.3F,
                                     .seed = 5},
                   kMany);
    block.place = {.step = step, .first_token = 77};
    const std::vector<float> out = block.forward(recompute ? Pass::kInference : Pass::kTraining);
    if (recompute) block.forward(Pass::kRecompute);
    return std::pair(out, block.backward(g));
  };
  const auto want = run("none", false, 1);
  for (const bool recompute : {false, true}) {
    for (const char* tile : {"none", "rows=8"}) {
      const auto got = run(tile, recompute, 1);
      EXPECT_EQ(got.first, want.first) << tile << recompute;
      EXPECT_EQ(got.second.gradient, want.second.gradient) << tile << recompute;
      EXPECT_EQ(got.second.params, want.second.params) << tile << recompute;
    }
  }
  EXPECT_NE(run("none", false, 2).first, want.first);
}

// The masks are constants of a forward, so its differences are what the backward must give.
TEST(LlamaBlock, GradientThroughDropoutIsThatOfDifferences) {
  const LlamaConfig config = toy_config();
  const LlamaBlockOptions options = {.granule_rows = 4, .dropout = 0.3F, .seed = 5};
  const std::vector<float> g = token_values("g", kTokens.rows() * config.hidden);
  BlockRun block(config, options, kTokens);
  const auto value = [&](const std::vector<float>& in) {
    block.set_input(in);
    const std::vector<float> out = block.forward();
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      sum += static_cast<double>(out[i]) * static_cast<double>(g[i]);
    }
    return sum;
  };
  const std::vector<float> in = token_values("x", kTokens.rows() * config.hidden);
  value(in);
  const Backward got = block.backward(g);
  constexpr float kStep = 1.0F / 64;
  for (std::size_t i = 0; i < in.size(); i += 13) {
    std::vector<float> above = in, below = in;
    above[i] += kStep;
    below[i] -= kStep;
    const double slope = (value(above) - value(below)) / (2 * static_cast<double>(kStep));
    EXPECT_NEAR(static_cast<double>(got.gradient[i]), slope, 0.02) << i;
  }
}

TEST(LlamaBlock, TilesBoundTheMemoryOfTheMlp) {
  const LlamaConfig config = toy_config();
  const auto memory = [&](const char* tile, std::int64_t seq) {
    RopeViews rope;
    return LlamaBlock(config, 0,
                      {.granule_rows = 4, .tile = parse_tile_policy(tile), .recompute = true}, rope)
        .memory({.batch = 1, .seq = seq});
  };
  // What grows with a token: five tensors of the attention and its log-sum-exps; d_attention,
  // d_q, d_k and d_v.
  const std::int64_t saved =
      4 * (2 * config.query_width() + 2 * config.kv_width() + config.heads + config.hidden);
  EXPECT_EQ((memory("rows=8", 4096).saved - memory("rows=8", 2048).saved).count(), 2048 * saved);
  const Bytes untiled = memory("none", 4096).workspace - memory("none", 2048).workspace;
  const Bytes tiled = memory("rows=8", 4096).workspace - memory("rows=8", 2048).workspace;
  EXPECT_GE((untiled - tiled).count(), 0);
  const LlamaConfig wide = [&] {
    LlamaConfig changed = config;
    changed.intermediate *= 100;
    return changed;
  }();
  RopeViews rope;
  const auto wide_memory = [&](const char* tile) {
    return LlamaBlock(wide, 0,
                      {.granule_rows = 4, .tile = parse_tile_policy(tile), .recompute = true}, rope)
        .memory({.batch = 1, .seq = 4096})
        .workspace;
  };
  EXPECT_LT(wide_memory("rows=8").count() * 10, wide_memory("none").count());
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
