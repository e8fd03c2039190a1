#include <gtest/gtest.h>

#include <utility>

#include "trainer/block_run.h"

namespace zero3::trainer {
namespace {

class LlamaBlockTiles : public BlockFeature {};
INSTANTIATE_TEST_SUITE_P(, LlamaBlockTiles, ::testing::ValuesIn(kFeatures),
                         [](const auto& test) { return test.param.name; });

// H2: tiles of one granule, of several, with a short one at the end, and a single one.
TEST_P(LlamaBlockTiles, TilesChangeNoBit) {
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
TEST_P(LlamaBlockTiles, DropoutIsTheSameInTilesAndRecomputation) {
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
TEST(LlamaBlockDropout, GradientThroughDropoutIsThatOfDifferences) {
  const LlamaConfig config = test::toy_config();
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

TEST(LlamaBlockMemory, TilesBoundTheMemoryOfTheMlp) {
  const LlamaConfig config = test::toy_config();
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

}  // namespace
}  // namespace zero3::trainer
