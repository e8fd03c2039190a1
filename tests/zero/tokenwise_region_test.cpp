#include <zero3/tokenwise_region.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "support/contains.h"
#include "support/engine_ops.h"
#include "support/run_ranks.h"
#include "zero/region_model.h"

namespace zero3::test {
namespace {

/// What one rank sees of a step.
struct Seen {
  std::vector<float> y, dx;
  /// Of the region alone, before reduction; with uses > 1.
  std::vector<std::vector<float>> grads;
  std::uint64_t checksum = 0;
  double norm = 0;
  std::int64_t tiles = 0;
  friend bool operator==(const Seen& a, const Seen& b) {
    return a.y == b.y && a.dx == b.dx && a.grads == b.grads && a.checksum == b.checksum &&
           a.norm == b.norm;
  }
};

Seen see(const RegionSetting& setting) {
  Seen seen;
  run_ranks(1, [&](Rank& rank) {
    RegionModel model(*rank.device, *rank.communicator, setting, setting.accumulate);
    for (int j = 0; j < setting.accumulate; ++j) {
      const MicroStep scope = model.engine.begin_micro_step();
      for (int use = 1; use < setting.uses; ++use) {
        const Gradients grads = model.engine.grads(model.id);
        add_gradient(model.engine, grads[GatedMlp::kDown],
                     [](std::int64_t i) { return value_at(3, i); });
        if (use + 1 < setting.uses) continue;
        model.run(setting.tokens, j);
        for (const int param : {GatedMlp::kGate, GatedMlp::kBias, GatedMlp::kDown}) {
          if (!grads[param].empty()) seen.grads.push_back(values_of(model.engine, grads[param]));
        }
      }
      if (setting.uses == 1) model.run(setting.tokens, j);
    }
    seen.norm = model.engine.step({.learning_rate = 0.1, .divisor = 3.0}).grad_norm;
    seen.y = values_of(model.engine, model.y.view());
    if (setting.input_gradient) seen.dx = values_of(model.engine, model.dx.view());
    seen.checksum = model.engine.weights_checksum();
    seen.tiles = model.region->tiles_run();
  });
  return seen;
}

// H2
TEST(TokenwiseRegion, TilesChangeNoBit) {
  for (const std::int64_t seq : {0, 1, 15, 16, 17, 97}) {
    for (const std::int64_t batch : {1, 3}) {
      RegionSetting setting{.tokens = {batch, seq}};
      for (const int accumulate : {1, 3}) {
        setting.accumulate = accumulate;
        setting.tile = "none";
        const Seen want = see(setting);
        const std::int64_t rows = batch * seq;
        std::vector<std::string> tiles = {"auto", "rows=1", "rows=16", "rows=100000", "seq/hidden"};
        if (rows > 1) tiles.push_back("rows=" + std::to_string(rows - 1));
        if (rows > 0) tiles.push_back("rows=" + std::to_string(rows));
        if (rows >= 7) tiles.push_back("count=7");
        for (const std::string& tile : tiles) {
          setting.tile = tile;
          EXPECT_EQ(see(setting), want) << batch << " x " << seq << ", " << tile;
        }
      }
    }
  }
}

TEST(TokenwiseRegion, FrozenWeightsAndInputsWithoutGradientsAreLeftOut) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::vector<int>& frozen : {std::vector<int>{},
                                           {GatedMlp::kGate},
                                           {GatedMlp::kBias, GatedMlp::kDown},
                                           {GatedMlp::kGate, GatedMlp::kBias, GatedMlp::kDown}}) {
      for (const bool input_gradient : {true, false}) {
        RegionSetting setting{
            .tokens = {2, 45}, .input_gradient = input_gradient, .frozen = frozen, .dtype = dtype};
        const Seen want = see(setting);
        EXPECT_EQ(want.norm == 0, frozen.size() == 3) << "weights learn whoever needs dx";
        setting.tile = "rows=16";
        EXPECT_EQ(see(setting), want) << frozen.size() << " frozen";
      }
    }
  }
}

// H7, and a table used twice.
TEST(TokenwiseRegion, AddsToWhatTheGradientHolds) {
  RegionSetting setting{.tokens = {2, 45}, .uses = 2};
  const Seen prefilled = see(setting);
  setting.tile = "rows=16";
  EXPECT_EQ(see(setting), prefilled);
  setting.uses = 3;  // g0 twice
  const Seen twice = see(setting);
  const std::vector<float>& down = prefilled.grads[2];
  for (std::size_t i = 0; i < down.size(); ++i) {
    EXPECT_NEAR(twice.grads[2][i] - down[i], value_at(3, static_cast<std::int64_t>(i)), 1e-4) << i;
  }
  EXPECT_EQ(twice.grads[0], prefilled.grads[0]);
}

// H3: bf16 tensors, fp32 sums.
TEST(TokenwiseRegion, ErrorOfAWeightGradientDoesNotGrowWithTheTiles) {
  RegionSetting setting{.tokens = {1, 4096}, .uses = 2, .dtype = DType::kBF16};
  const Seen whole = see(setting);
  setting.tile = "rows=16";
  const Seen tiled = see(setting);
  EXPECT_EQ(tiled.tiles, 2 * 256);
  EXPECT_EQ(tiled.grads, whole.grads);
  setting.dtype = DType::kF32;
  const Seen exact = see(setting);
  for (std::size_t param = 0; param < exact.grads.size(); ++param) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < exact.grads[param].size(); ++i) {
      const double want = exact.grads[param][i];
      error += std::pow(tiled.grads[param][i] - want, 2);
      norm += want * want;
    }
    EXPECT_LT(std::sqrt(error / norm), 1e-2) << param;
  }
}

// The gradients themselves: against differences of the loss Σ y · dy.
TEST(TokenwiseRegion, GradientsAreThoseOfDifferences) {
  const RegionSetting setting{.tokens = {1, 20}, .tile = "rows=16"};
  run_ranks(1, [&](Rank& rank) {
    RegionModel model(*rank.device, *rank.communicator, setting, 1);
    const auto loss = [&] {
      const InferencePass pass = model.engine.begin_inference();
      model.region->forward(setting.tokens, {{model.x.view()}}, {{model.y.view()}});
      const std::vector<float> y = values_of(model.engine, model.y.view());
      double sum = 0;
      for (std::size_t i = 0; i < y.size(); ++i)
        sum += static_cast<double>(y[i]) * value_at(2, static_cast<std::int64_t>(i));
      return sum;
    };
    std::vector<float> dx;
    {
      const MicroStep scope = model.engine.begin_micro_step();
      model.run(setting.tokens, 0);
      dx = values_of(model.engine, model.dx.view());
    }
    std::vector<std::vector<float>> before, after;
    const std::vector<std::string> names = {"mlp.gate", "mlp.bias", "mlp.down"};
    for (const std::string& name : names) before.push_back(model.engine.read_parameter(name));
    model.engine.step({.learning_rate = 1.0, .divisor = 1.0});
    for (const std::string& name : names) after.push_back(model.engine.read_parameter(name));
    for (std::size_t p = 0; p < names.size(); ++p)
      model.engine.write_parameter(names[p], before[p]);
    constexpr float kStep = 1e-2F;
    for (std::size_t p = 0; p < names.size(); ++p) {
      for (const std::size_t i : {std::size_t{0}, before[p].size() / 2, before[p].size() - 1}) {
        std::vector<float> moved = before[p];
        const auto loss_at = [&](float offset) {
          moved[i] = before[p][i] + offset;
          model.engine.write_parameter(names[p], moved);
          return loss();
        };
        const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
        EXPECT_NEAR(before[p][i] - after[p][i], slope, 2e-2 * (1 + std::abs(slope)))
            << names[p] << '[' << i << ']';
        model.engine.write_parameter(names[p], before[p]);
      }
    }
    for (const std::int64_t i : {0, 100, 479}) {
      const auto loss_at = [&](float offset) {
        model.fill(model.x.view(), 1, 0);
        model.engine.compute().call("move", [x = host(model.x.view()), i, offset] {
          x[static_cast<std::size_t>(i)] += offset;
        });
        return loss();
      };
      const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      EXPECT_NEAR(dx[static_cast<std::size_t>(i)], slope, 2e-2 * (1 + std::abs(slope))) << i;
    }
  });
}

TEST(TokenwiseRegion, ItsWorkspaceIsThatOfATileAndPlanned) {
  const auto workspace = [](const std::string& tile) {
    Bytes bytes;
    run_ranks(1, [&](Rank& rank) {
      const RegionModel model(*rank.device, *rank.communicator, {.tokens = {1, 640}, .tile = tile},
                              1);
      const Bytes planned = model.region->plan().total();
      EXPECT_EQ(rank.device->stats().peak()[MemoryTag::kWorkspace],
                planned + model.engine.plan()[MemoryTag::kWorkspace]);
      EXPECT_EQ(planned, aligned(model.mlp.workspace(tile == "none" ? 640 : 16)));
      bytes = planned;
    });
    return bytes;
  };
  EXPECT_EQ(workspace("none") - workspace("rows=16"), Bytes(3 * (640 - 16) * 40 * 4));
}

TEST(TokenwiseRegion, MoreTilesThanRowsAreRefused) {
  EXPECT_TRUE(contains(usage_error([] {
                         static_cast<void>(see({.tokens = {1, 24}, .tile = "count=25"}));
                       }),
                       {"25 tiles", "24 rows"}));
}

TEST(TokenwiseRegion, TensorsThatDoNotFitAreRefused) {
  run_ranks(1, [](Rank& rank) {
    RegionModel model(*rank.device, *rank.communicator, {.tokens = {1, 10}}, 1);
    const TensorView x = model.x.view(), y = model.y.view();
    const auto forward = [&](TokenShape tokens, const TensorView& in, const TensorView& out) {
      return usage_error([&] { model.region->forward(tokens, {{in}}, {{out}}); });
    };
    EXPECT_TRUE(contains(forward({1, 11}, x, y), {"1 x 11", "made for 1 x 10"}));
    EXPECT_TRUE(contains(forward({1, 10}, x.slice(0, 239), y), {"input 0", "239", "10 tokens"}));
    EXPECT_TRUE(contains(forward({1, 10}, x, y.slice(0, 5)), {"output 0", "5 elements"}));
    EXPECT_TRUE(contains(forward({0, 10}, x, TensorView()), {"input 0", "0 tokens"}));
    EXPECT_EQ(forward({1, 10}, x, y), "nothing was thrown");
    TokenwiseRegion unbuilt(model.engine, model.id, model.mlp.function(), {.tokens = {1, 10}});
    EXPECT_TRUE(contains(usage_error([&] {
                           unbuilt.forward({1, 10}, {{x}}, {{y}});
                         }),
                         {"before build()"}));
    EXPECT_TRUE(
        contains(usage_error([&] { const TokenwiseRegion none(model.engine, model.id, {}, {}); }),
                 {"needs a forward"}));
  });
}

}  // namespace
}  // namespace zero3::test
