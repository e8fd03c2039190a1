#include "gatherer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/contains.h"
#include "support/engine_ops.h"
#include "support/gather_passes.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

float pattern(std::int64_t i) {
  return static_cast<float>(i % 1009) * 0.25F - 100.0F;
}

std::vector<float> pattern_of(std::size_t size) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = pattern(static_cast<std::int64_t>(i));
  return values;
}

// B5: n = 7 and n = 5 in one group; B9: random shapes. What is gathered is what was written.
TEST(Gatherer, GatheredValuesAreTheMasters) {
  for (const int world_size : {1, 2, 3, 4, 7}) {
    run_ranks(world_size, [&](Rank& rank) {
      std::mt19937 random(3);
      Engine engine(*rank.device, *rank.communicator, {});
      std::vector<std::vector<std::int64_t>> shapes = {{7, 5}};
      for (int i = 0; i < 12; ++i) {
        shapes.emplace_back();
        for (auto n = random() % 5; n > 0; --n)
          shapes.back().push_back(static_cast<std::int64_t>(random() % (n == 1 ? 5000 : 40)));
      }
      for (std::size_t g = 0; g < shapes.size(); ++g) {
        GroupSpec group{.name = "g" + std::to_string(g), .params = {}};
        for (std::size_t p = 0; p < shapes[g].size(); ++p)
          group.params.push_back(
              {.name = group.name + "." + std::to_string(p), .shape = {shapes[g][p]}});
        engine.add_group(group);
      }
      engine.build();
      for (const GroupSpec& group : engine.groups()) {
        for (const ParamSpec& param : group.params)
          engine.write_parameter(param.name,
                                 pattern_of(static_cast<std::size_t>(param.size().count())));
      }
      for (int g = 0; g < static_cast<int>(shapes.size()); ++g) {
        const Gathered full = engine.gather({g});
        for (int p = 0; p < static_cast<int>(shapes[static_cast<std::size_t>(g)].size()); ++p) {
          const std::vector<float> want = pattern_of(static_cast<std::size_t>(full[p].count()));
          EXPECT_EQ(values_of(engine, full[p]), want) << "group " << g << " parameter " << p;
        }
      }
    });
  }
}

// C7: fp32 beside bf16 and fp16 in one group.
TEST(Gatherer, MixedDtypesAreGatheredInTheirOwn) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.precision = {.param = DType::kBF16}});
    const GroupId id = engine.add_group(
        {.name = "g",
         .params = {{.name = "matrix", .shape = {1500}},
                    {.name = "norm", .shape = {40}, .dtype = DType::kF32},
                    {.name = "half", .shape = {3}, .trainable = false, .dtype = DType::kF16}}});
    engine.build();
    const float third = 1.0F / 3.0F;
    engine.write_parameter("matrix", std::vector<float>(1500, third));
    engine.write_parameter("norm", std::vector<float>(40, third));
    engine.write_parameter("half", std::vector<float>(3, third));
    const Gathered full = engine.gather(id);
    EXPECT_EQ(full[0].dtype(), DType::kBF16);
    EXPECT_EQ(full[1].dtype(), DType::kF32);
    EXPECT_EQ(full[2].dtype(), DType::kF16);
    EXPECT_EQ(values_of(engine, full[0]),
              std::vector<float>(1500, static_cast<float>(BFloat16(third))));
    EXPECT_EQ(values_of(engine, full[1]), std::vector<float>(40, third));
    EXPECT_EQ(values_of(engine, full[2]),
              std::vector<float>(3, static_cast<float>(Float16(third))));
  });
}

TEST(Gatherer, ViewsAreAlignedTo64Bytes) {
  run_ranks(3, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.precision = {.param = DType::kBF16}});
    const GroupId id = engine.add_group(
        {.name = "g", .params = {{.name = "a", .shape = {5}}, {.name = "b", .shape = {9}}}});
    engine.build();
    const Gathered full = engine.gather(id);
    for (const int param : {0, 1})
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(full[param].data()) % 64, 0U);
  });
}

// C6, in every way in which a group may be held.
TEST(Gatherer, AViewKeptPastReleaseIsCaught) {
  struct Case {
    int world_size;
    DType dtype;
    Elements keep_below;
  };
  for (const Case& c : {Case{1, DType::kF32, Elements(0)}, Case{1, DType::kBF16, Elements(0)},
                        Case{2, DType::kF32, Elements(0)}, Case{2, DType::kF32, Elements(9999)}}) {
    run_ranks(c.world_size, [&](Rank& rank) {
      Engine engine(*rank.device, *rank.communicator,
                    {.precision = {.param = c.dtype}, .keep_gathered_below = c.keep_below});
      const GroupId id = engine.add_group(group_of("g", {100}));
      engine.build();
      TensorView kept;
      {
        const Gathered full = engine.gather(id);
        kept = full[0];
        EXPECT_TRUE(kept.alive());
      }
      EXPECT_FALSE(kept.alive());
      EXPECT_TRUE(contains(message_of<UsageError>([&] { static_cast<void>(kept.data()); }),
                           {"100", "released"}));
      const Gathered again = engine.gather(id);
      EXPECT_FALSE(kept.alive());
    });
  }
}

// C6
TEST(Gatherer, AHandleThatWasMovedFromReadsNothing) {
  run_ranks(1, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    const GroupId id = engine.add_group(group_of("g", {100}));
    engine.build();
    Gathered full = engine.gather(id);
    const Gathered taken = std::move(full);
    // NOLINTNEXTLINE(bugprone-use-after-move)
    EXPECT_TRUE(
        contains(message_of<UsageError>([&] { static_cast<void>(full[0]); }), {"moved from"}));
    EXPECT_EQ(taken[0].count(), 100);
  });
}

TEST(Gatherer, AParameterThatIsNotThereIsNamed) {
  run_ranks(1, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    const GroupId id = engine.add_group(group_of("wte", {100}));
    engine.build();
    const Gathered full = engine.gather(id);
    EXPECT_TRUE(contains(message_of<UsageError>([&] { static_cast<void>(full[1]); }),
                         {"'wte'", "1 parameters", "no index 1"}));
    EXPECT_TRUE(contains(message_of<UsageError>([&] { static_cast<void>(engine.gather({7})); }),
                         {"no group 7", "1 are registered"}));
  });
}

// C13
TEST(Gatherer, ANestedGatherOfAHeldGroupMovesNothing) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    const GroupId id = engine.add_group(group_of("g", {100}));
    engine.build();
    const std::int64_t before = gathers(engine);
    const Gathered outer = engine.gather(id);
    {
      const Gathered inner = engine.gather(id);
      EXPECT_EQ(inner[0].data(), outer[0].data());
    }
    EXPECT_TRUE(outer[0].alive());
    EXPECT_EQ(gathers(engine) - before, 1);
  });
}

// C13
TEST(Gatherer, AnotherThreadSharesAHeldGroup) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    const GroupId id = engine.add_group(group_of("g", {100}, Init::ones()));
    engine.build();
    const Gathered full = engine.gather(id);
    const void* seen = nullptr;
    std::jthread([&] {
      for (int i = 0; i < 200; ++i) {
        const Gathered shared = engine.gather(id);
        seen = shared[0].data();
      }
    }).join();
    EXPECT_EQ(seen, full[0].data());
    EXPECT_EQ(values_of(engine, full[0]), std::vector<float>(100, 1.0F));
  });
}

// C13: while the first thread goes on with other groups.
TEST(Gatherer, AnotherThreadSharesAGroupWhileOthersAreGathered) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    const std::vector<GroupId> groups = add_groups(engine, 3);
    engine.build();
    const Gathered full = engine.gather(groups[0]);
    std::jthread other([&] {
      for (int i = 0; i < 200; ++i) static_cast<void>(engine.gather(groups[0])[0].alive());
    });
    for (int i = 0; i < 20; ++i) {
      static_cast<void>(engine.gather(groups[1]));
      static_cast<void>(engine.gather(groups[2]));
    }
  });
}

// C13
TEST(Gatherer, AnotherThreadMayNotStartAGather) {
  run_ranks(1, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    const GroupId id = engine.add_group(group_of("block.3", {100}));
    engine.build();
    std::string message;
    std::jthread([&] {
      message = message_of<UsageError>([&] { static_cast<void>(engine.gather(id)); });
    }).join();
    EXPECT_TRUE(contains(message, {"'block.3'", "rank 0", "second thread", "gather it first"}));
  });
}

TEST(Gatherer, LettingGoOfASharedGroupIsReportedByTheNextGather) {
  run_ranks(1, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.precision = {.param = DType::kBF16}});
    const GroupId id = engine.add_group(group_of("g", {100}, Init::ones()));
    engine.build();
    std::optional<Gathered> full = engine.gather(id);
    std::vector<Gathered> shared;
    std::jthread([&] { shared.push_back(engine.gather(id)); }).join();
    full.reset();
    // Its memory stays for the other thread.
    EXPECT_GT(gathered_now(rank), Bytes(0));
    EXPECT_TRUE(contains(message_of<UsageError>([&] { static_cast<void>(engine.gather(id)); }),
                         {"'g'", "rank 0", "another thread still shares it"}));
    engine.reset();
    shared.clear();
    EXPECT_EQ(values_of(engine, engine.gather(id)[0]), std::vector<float>(100, 1.0F));
  });
}

}  // namespace
}  // namespace zero3::test
