#include "grad_clip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include <zero3/faulty_communicator.h>

#include "support/contains.h"
#include "support/engine_ops.h"
#include "support/run_ranks.h"
#include "support/thrown.h"

namespace zero3::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(ClipFactor, ClipZeroIsOff) {
  EXPECT_EQ(clip_factor(1e30, 0), 1.0);
}
TEST(ClipFactor, ASmallNormIsLeftAlone) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
}
TEST(ClipFactor, ALargeNormIsBroughtToTheClip) {
  EXPECT_DOUBLE_EQ(clip_factor(4.0, 1.0), 1.0 / (4.0 + 1e-6));
}
TEST(ClipFactor, ANormOfZeroDividesByNothing) {
  EXPECT_EQ(clip_factor(0, 1.0), 1.0);
}

float gradient_at(std::int64_t group, std::int64_t i) {
  return std::sin(static_cast<float>(group * 1000 + i)) * 0.1F;
}

/// Groups that are sharded over all ranks, small (most shards are empty), without elements, partly
/// frozen, and tied.
struct Model {
  explicit Model(Engine& engine) {
    groups.push_back(engine.add_group(group_of("large", {9001}, Init::zeros())));
    groups.push_back(engine.add_group(group_of("small", {3}, Init::zeros())));
    groups.push_back(engine.add_group(group_of("none", {0}, Init::zeros())));
    GroupSpec frozen = group_of("half_frozen", {1500}, Init::zeros());
    frozen.params.push_back({.name = "frozen", .shape = {700}, .trainable = false});
    groups.push_back(engine.add_group(frozen));
    groups.push_back(engine.add_group(group_of("tied", {7, 4}, Init::zeros(), 2)));
  }
  void micro_step(Engine& engine, float factor) const {
    MicroStep scope = engine.begin_micro_step();
    for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
      const GroupId id = *group;
      const int uses = engine.groups()[static_cast<std::size_t>(id.index)].uses;
      for (int use = 0; use < uses; ++use) {
        add_gradient(engine, engine.grads(id)[0],
                     [=](std::int64_t i) { return factor * gradient_at(id.index + use, i); });
      }
    }
    scope.end();
  }
  std::vector<GroupId> groups;
};

// G1
TEST(GlobalNorm, IsThatOfTheWholeGradientWithTheSameBitsForEveryWorldSize) {
  double squares = 0;
  const auto add = [&](std::int64_t count, const auto& value) {
    for (std::int64_t i = 0; i < count; ++i) squares += std::pow(static_cast<double>(value(i)), 2);
  };
  add(9001, [](std::int64_t i) { return gradient_at(0, i); });
  add(3, [](std::int64_t i) { return gradient_at(1, i); });
  add(1500, [](std::int64_t i) { return gradient_at(3, i); });
  add(28, [](std::int64_t i) { return gradient_at(4, i) + gradient_at(5, i); });

  std::vector<double> norms;
  for (const int world_size : {1, 2, 4, 7}) {
    std::vector<double> of_ranks(static_cast<std::size_t>(world_size));
    run_ranks(world_size, [&](Rank& rank) {
      Engine engine(*rank.device, *rank.communicator, {});
      const Model model(engine);
      engine.build();
      // One rank gives everything: the sums are equal for every world size.
      model.micro_step(engine, rank.rank == 0 ? 1.0F : 0.0F);
      of_ranks[static_cast<std::size_t>(rank.rank)] =
          engine.step({.learning_rate = 0.1, .divisor = 2.0}).grad_norm;
    });
    norms.insert(norms.end(), of_ranks.begin(), of_ranks.end());
  }
  EXPECT_EQ(norms, std::vector<double>(norms.size(), norms[0]));
  EXPECT_NEAR(norms[0], std::sqrt(squares) / 2, 1e-6 * norms[0]);
}

// G1: what is applied is the clipped gradient.
TEST(GlobalNorm, ClippedStepsAreThoseOfTheOracle) {
  for (const int world_size : {1, 2, 4}) {
    run_ranks(world_size, [&](Rank& rank) {
      Engine engine(*rank.device, *rank.communicator,
                    {.optimizer = OptimizerKind::kSgd, .clip = 0.5, .loss_scale = 16});
      const Model model(engine);
      engine.build();
      model.micro_step(engine, rank.rank == 0 ? 16.0F : 0.0F);
      const StepResult result = engine.step({.learning_rate = 1.0, .divisor = 3.0});
      EXPECT_GT(result.grad_norm, 0.5);
      const auto factor = static_cast<float>(1.0 / 48.0 * (0.5 / (result.grad_norm + 1e-6)));
      const std::vector<float> got = engine.read_parameter("large");
      double squares = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        const float g = 16.0F * gradient_at(0, static_cast<std::int64_t>(i));
        EXPECT_EQ(got[i], 0.0F - 1.0F * (g * factor + 0.0F * 0.0F)) << i;
        squares += std::pow(static_cast<double>(got[i]), 2);
      }
      EXPECT_LT(squares, 0.25);
    });
  }
}

TEST(GlobalNorm, IsUnscaledAndDivided) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.loss_scale = 1024});
    const GroupId id = engine.add_group(group_of("w", {4}));
    engine.build();
    micro_step_of(engine, {{id, 1024.0F}});
    EXPECT_EQ(engine.step({.learning_rate = 0.0, .divisor = 8.0}).grad_norm, 2.0 * 2.0 / 8.0);
  });
}

std::vector<std::uint32_t> bits_of(Engine& engine, std::string_view name) {
  const std::vector<float> values = engine.read_parameter(name);
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

// A5: the last rank owns the element.
TEST(GlobalNorm, OneElementThatIsNotFiniteSkipsTheStepOnEveryRank) {
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    for (const int world_size : {1, 2, 3}) {
      run_ranks(world_size, [&](Rank& rank) {
        Engine engine(*rank.device, *rank.communicator,
                      {.optimizer_groups = {{.weight_decay = 0.1}}, .clip = 1.0});
        GroupSpec spec = group_of("a", {2000});
        spec.params.push_back({.name = "b", .shape = {7000}});
        spec.params.push_back({.name = "c", .shape = {50}});
        const GroupId id = engine.add_group(spec);
        engine.build();
        const auto train = [&](float value) {
          MicroStep scope = engine.begin_micro_step();
          const Gradients grads = engine.grads(id);
          add_gradient(engine, grads[0], [](std::int64_t) { return 1.0F; });
          add_gradient(engine, grads[1],
                       [value](std::int64_t i) { return i == 6990 ? value : 1.0F; });
        };
        train(1.0F);
        engine.step({.learning_rate = 0.1});
        const auto before = bits_of(engine, "b");
        const std::uint64_t checksum = engine.weights_checksum();
        train(bad);
        const StepResult result = engine.step({.learning_rate = 0.1});
        EXPECT_FALSE(result.applied);
        EXPECT_EQ(result.first_bad_parameter, "b");
        EXPECT_TRUE(contains(result.reason, {"'b'", "not finite", "skipped"}));
        EXPECT_EQ(bits_of(engine, "b"), before);
        EXPECT_EQ(engine.weights_checksum(), checksum);
        EXPECT_EQ(engine.steps_applied(), 1);
      });
    }
  }
}

// What a collective that moved nothing leaves behind is no number of tokens.
TEST(GlobalNorm, AReportThatWasDamagedIsAnErrorThatNamesItsRank) {
  run_ranks(1, [&](Rank& rank) {
    FaultyCommunicator lossy(std::move(rank.communicator),
                             {{.kind = Fault::Kind::kDrop, .label = "global norm"}});
    Engine engine(*rank.device, lossy, {});
    const GroupId id = engine.add_group(group_of("a", {100}));
    engine.build();
    micro_step_of(engine, {{id, 1.0F}});
    EXPECT_TRUE(contains(thrown<CommError>([&] { engine.step({.learning_rate = 0.1}); }),
                         {"rank 0 reported", "nan tokens", "no count"}));
  });
}

// A5: moments too, so a run with a skipped step ends as one without.
TEST(GlobalNorm, ASkippedStepLeavesNoTrace) {
  std::vector<std::uint64_t> checksums;
  for (const bool with_bad : {false, true}) {
    run_ranks(2, [&](Rank& rank) {
      Engine engine(*rank.device, *rank.communicator, {.micro_steps = 2});
      const GroupId id = engine.add_group(group_of("w", {5000}));
      engine.build();
      for (int step = 0; step < 4; ++step) {
        if (step == 2 && with_bad) {
          micro_step_of(engine, {{id, rank.rank == 1 ? kInfinity : 1.0F}});
          micro_step_of(engine, {{id, 1.0F}});
          EXPECT_FALSE(engine.step({.learning_rate = 0.1}).applied);
        }
        for (int i = 0; i < 2; ++i) micro_step_of(engine, {{id, static_cast<float>(step + i)}});
        EXPECT_TRUE(engine.step({.learning_rate = 0.1}).applied);
      }
      const std::uint64_t checksum = engine.weights_checksum();
      if (rank.rank == 0) checksums.push_back(checksum);
    });
  }
  EXPECT_EQ(checksums[0], checksums[1]);
}

// G1
TEST(GlobalNorm, NanIsReportedAsNanAndInfinityAsInfinity) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    const GroupId id = engine.add_group(group_of("w", {10}));
    engine.build();
    micro_step_of(engine, {{id, kNan}});
    EXPECT_TRUE(std::isnan(engine.step({.learning_rate = 0.1}).grad_norm));
    micro_step_of(engine, {{id, kInfinity}});
    EXPECT_TRUE(std::isinf(engine.step({.learning_rate = 0.1}).grad_norm));
  });
}

TEST(GlobalNorm, AGradientThatOverflowsWhenItIsRoundedIsFound) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.precision = {.reduce = DType::kF16}});
    const GroupId id = engine.add_group(group_of("w", {10}));
    engine.build();
    micro_step_of(engine, {{id, 70000.0F}});
    EXPECT_EQ(engine.step({.learning_rate = 0.1}).first_bad_parameter, "w");
  });
}

TEST(GlobalNorm, TheFirstBadParameterInTheOrderOfRegistrationIsNamed) {
  run_ranks(3, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    const GroupId a = engine.add_group(group_of("a", {10}));
    const GroupId b = engine.add_group(group_of("b", {6000}));
    const GroupId c = engine.add_group(group_of("c", {6000}));
    engine.build();
    micro_step_of(engine, {{c, kNan}, {b, rank.rank == 1 ? kInfinity : 1.0F}, {a, 1.0F}});
    EXPECT_EQ(engine.step({.learning_rate = 0.1}).first_bad_parameter, "b");
  });
}

TEST(GlobalNorm, LossesAreFoldedInTheOrderOfMicroBatches) {
  const std::vector<double> losses = {1.0, 0x1p-53, 0x1p-53, 5.0, -6.0, 0x1p-60};
  const double want = std::accumulate(losses.begin(), losses.end(), 0.0);
  for (const int world_size : {1, 2, 3, 6}) {
    run_ranks(world_size, [&](Rank& rank) {
      const int micro_steps = 6 / world_size;
      Engine engine(*rank.device, *rank.communicator, {.micro_steps = micro_steps});
      engine.add_group(group_of("w", {4}));
      engine.build();
      const Buffer loss(Elements(1), DType::kF64, MemoryTag::kActivations, engine.compute());
      for (int step = 0; step < 2; ++step) {
        for (int i = 0; i < micro_steps; ++i) {
          const double value = losses[static_cast<std::size_t>(i * world_size + rank.rank)];
          MicroStep scope = engine.begin_micro_step();
          engine.compute().call("loss",
                                [value, p = internal::native<double>(loss.view())] { *p = value; });
          scope.report(loss.view(), 10 + rank.rank);
        }
        const StepResult result = engine.step({.learning_rate = 0.1});
        EXPECT_EQ(result.loss_sum, want) << world_size;
        EXPECT_EQ(result.tokens, 60 + micro_steps * world_size * (world_size - 1) / 2);
      }
    });
  }
}

TEST(GlobalNorm, MicroStepsThatReportNothingCountAsZero) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.micro_steps = 2});
    engine.add_group(group_of("w", {4}));
    engine.build();
    const Buffer loss(Elements(1), DType::kF64, MemoryTag::kActivations, engine.compute());
    const double one = 1.0;
    copy_from_host(loss.view(), &one, engine.compute());
    for (int step = 0; step < 2; ++step) {
      for (int i = 0; i < 2; ++i) {
        MicroStep scope = engine.begin_micro_step();
        if (i == step && rank.rank == 0) scope.report(loss.view(), 3);
      }
      const StepResult result = engine.step({.learning_rate = 0.1});
      EXPECT_EQ(result.loss_sum, 1.0);
      EXPECT_EQ(result.tokens, 3);
    }
  });
}

TEST(GlobalNorm, ALossIsReportedOnceAsOneDouble) {
  run_ranks(1, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    engine.add_group(group_of("w", {4}));
    engine.build();
    const Buffer loss(Elements(2), DType::kF64, MemoryTag::kActivations, engine.compute());
    fill_zero(loss.view(), engine.compute());
    MicroStep scope = engine.begin_micro_step();
    EXPECT_TRUE(contains(message_of<UsageError>([&] { scope.report(loss.view(), 1); }),
                         {"one fp64 element", "2 of fp64"}));
    scope.report(loss.view().slice(0, 1), 1);
    EXPECT_TRUE(contains(message_of<UsageError>([&] { scope.report(loss.view().slice(0, 1), 1); }),
                         {"twice"}));
    scope.end();
    EXPECT_TRUE(contains(message_of<UsageError>([&] { scope.report(loss.view().slice(0, 1), 1); }),
                         {"has ended"}));
  });
}

TEST(GatherValues, GivesEveryRankAllValuesInRankOrder) {
  // More than fit through the report at once.
  constexpr std::size_t kCount = 300;
  run_ranks(3, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    engine.add_group(group_of("w", {4}));
    engine.build();
    std::vector<double> own(kCount), want;
    for (int r = 0; r < 3; ++r) {
      for (std::size_t i = 0; i < kCount; ++i)
        want.push_back(static_cast<double>(r) * 1e6 + static_cast<double>(i) / 3.0);
    }
    std::copy_n(want.begin() + static_cast<std::ptrdiff_t>(kCount) * rank.rank, kCount,
                own.begin());
    EXPECT_EQ(engine.gather_values(own, "values"), want);
    EXPECT_TRUE(engine.gather_values({}, "nothing").empty());
  });
}

TEST(GatherValues, DoesNotDisturbAStep) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    const GroupId id = engine.add_group(group_of("w", {4}));
    engine.build();
    const Buffer loss(Elements(1), DType::kF64, MemoryTag::kActivations, engine.compute());
    const double seven = 7.0;
    copy_from_host(loss.view(), &seven, engine.compute());
    {
      MicroStep scope = engine.begin_micro_step();
      add_gradient(engine, engine.grads(id)[0], [](std::int64_t) { return 1.0F; });
      scope.report(loss.view(), 1);
    }
    const double value = 3.0;
    EXPECT_EQ(engine.gather_values({&value, 1}, "v"), std::vector<double>(2, 3.0));
    const StepResult result = engine.step({.learning_rate = 0.1, .divisor = 1.0});
    EXPECT_EQ(result.loss_sum, 14.0);
    EXPECT_EQ(result.grad_norm, 4.0);
  });
}

}  // namespace
}  // namespace zero3::test
