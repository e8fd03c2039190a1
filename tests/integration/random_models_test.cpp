// B9: whatever the shapes, the ranks and the slots, reductions are those of plain loops.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "support/engine_ops.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

struct RandomModel {
  std::vector<GroupSpec> groups;
  EngineOptions options;
  int world_size = 1;

  explicit RandomModel(std::mt19937& random) {
    const auto below = [&](std::size_t n) { return random() % n; };
    const std::vector<std::int64_t> sizes = {0, 1, 2, 3, 6, 31, 33, 1023, 1024, 1025, 2500, 5003};
    for (std::size_t g = 0, count = 1 + below(6); g < count; ++g) {
      GroupSpec spec{
          .name = "g" + std::to_string(g), .params = {}, .uses = static_cast<int>(1 + below(2))};
      for (std::size_t p = 0, params = below(5); p < params; ++p) {
        spec.params.push_back({.name = spec.name + "." + std::to_string(p),
                               .shape = {sizes[below(sizes.size())]},
                               .init = Init::zeros(),
                               .trainable = below(5) != 0});
        if (below(3) == 0) spec.params.back().dtype = DType::kF32;
      }
      groups.push_back(spec);
    }
    const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kF16};
    options = {.precision = {.param = dtypes[below(3)], .reduce = dtypes[below(3)]},
               .optimizer = OptimizerKind::kSgd,
               .micro_steps = static_cast<int>(1 + below(3)),
               .prefetch = static_cast<int>(below(3)),
               .grad_slots = static_cast<int>(1 + below(3))};
    world_size = static_cast<int>(1 + below(5));
  }
};

/// Not exact in any 16-bit dtype, and different for all.
float gradient(std::size_t group, std::size_t param, std::int64_t element, int j, int use) {
  return 0.001F * static_cast<float>((element * 37 + j * 11 + use * 5) % 4001) +
         0.3F * static_cast<float>(group * 5 + param) - 2.0F;
}

float rounded(float value, DType dtype) {
  if (dtype == DType::kBF16) return static_cast<float>(BFloat16(value));
  if (dtype == DType::kF16) return static_cast<float>(Float16(value));
  return value;
}

/// Of micro-batch j; uses are left out now and then, on each rank as its own data says.
int uses_made(const GroupSpec& spec, std::size_t group, int j) {
  return (static_cast<int>(group) + j) % 4 == 0 ? spec.uses - 1 : spec.uses;
}

void train(Engine& engine, const RandomModel& model) {
  for (int m = 0; m < model.options.micro_steps; ++m) {
    const int j = m * model.world_size + engine.rank();
    const MicroStep scope = engine.begin_micro_step();
    for (std::size_t g = model.groups.size(); g-- > 0;) {
      static_cast<void>(engine.gather({static_cast<int>(g)}));
      for (int use = 0; use < uses_made(model.groups[g], g, j); ++use) {
        const Gradients grads = engine.grads({static_cast<int>(g)});
        for (std::size_t p = 0; p < model.groups[g].params.size(); ++p) {
          if (!model.groups[g].params[p].trainable) continue;
          add_gradient(engine, grads[static_cast<int>(p)],
                       [=](std::int64_t i) { return gradient(g, p, i, j, use); });
        }
      }
    }
  }
  EXPECT_TRUE(engine.step({.learning_rate = 1.0, .divisor = 1.0}).applied);
}

std::vector<float> plain(const RandomModel& model, std::size_t g, std::size_t p) {
  const GroupSpec& spec = model.groups[g];
  std::vector<float> weights(static_cast<std::size_t>(spec.params[p].size().count()), 0.0F);
  if (!spec.params[p].trainable) return weights;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    float sum = 0;
    for (int j = 0; j < model.options.micro_steps * model.world_size; ++j) {
      float complete = 0;
      for (int use = 0; use < uses_made(spec, g, j); ++use)
        complete += gradient(g, p, static_cast<std::int64_t>(i), j, use);
      const float travels = rounded(complete, model.options.precision.reduce);
      sum = j == 0 ? travels : sum + travels;
    }
    weights[i] -= 1.0F * (sum * 1.0F + 0.0F * weights[i]);
  }
  return weights;
}

TEST(RandomModels, ReductionsAreThoseOfPlainLoops) {
  std::mt19937 random(20240607);
  for (int round = 0; round < 150; ++round) {
    const RandomModel model(random);
    run_ranks(model.world_size,
              [&](Rank& rank) {
                Engine engine(*rank.device, *rank.communicator, model.options);
                for (const GroupSpec& spec : model.groups) engine.add_group(spec);
                engine.build();
                train(engine, model);
                for (std::size_t g = 0; g < model.groups.size(); ++g) {
                  for (std::size_t p = 0; p < model.groups[g].params.size(); ++p) {
                    const std::string& name = model.groups[g].params[p].name;
                    EXPECT_EQ(engine.read_parameter(name), plain(model, g, p))
                        << "round " << round << ", '" << name << "', " << model.world_size
                        << " ranks";
                  }
                }
              },
              {.seed = round % 3 == 0 ? std::optional<std::uint64_t>(round) : std::nullopt});
  }
}

}  // namespace
}  // namespace zero3::test
