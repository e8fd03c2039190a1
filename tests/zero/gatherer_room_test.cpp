#include "gatherer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <zero3/faulty_communicator.h>
#include "support/contains.h"
#include "support/engine_ops.h"
#include "support/gather_passes.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

// C4
TEST(Gatherer, AGroupIsGatheredTwiceAStepAndOnceWhereItIsKept) {
  for (const bool keep : {false, true}) {
    run_ranks(2, [&](Rank& rank) {
      Engine engine(*rank.device, *rank.communicator,
                    {.keep_gathered_below = Elements(keep ? 3001 : 3000)});
      const std::vector<GroupId> groups = add_groups(engine, 4);
      engine.build();
      for (int step = 0; step < 3; ++step) {
        const std::int64_t before = gathers(engine);
        pass(engine, groups);
        EXPECT_EQ(gathers(engine) - before, keep ? 4 : 8) << "step " << step;
        engine.step({.learning_rate = 0.1});
      }
    });
  }
}

TEST(Gatherer, AKeptGroupIsGatheredAnewAfterAnUpdate) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator,
                  {.optimizer = OptimizerKind::kSgd, .keep_gathered_below = Elements(9999)});
    const GroupId id = engine.add_group(group_of("g", {100}, Init::ones()));
    engine.build();
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(values_of(engine, engine.gather(id)[0]),
                std::vector<float>(100, 1.0F - 0.5F * static_cast<float>(step)));
      micro_step_of(engine, {{id, 1.0F}});
      engine.step({.learning_rate = 0.25});
    }
  });
}

// D1: collectives that take their time do not change what is held.
TEST(Gatherer, PeakIsTheWindowOfPrefetchWhateverTheTiming) {
  const Bytes group = aligned(bytes_of(shard_size(Elements(3000), 2) * 2, DType::kF32));
  for (const int prefetch : {0, 1, 2}) {
    for (int run = 0; run < 20; ++run) {
      run_ranks(2, [&](Rank& rank) {
        FaultyCommunicator slow(std::move(rank.communicator),
                                {{.kind = Fault::Kind::kDelay,
                                  .at = Fault::kEvery,
                                  .op = CollectiveOp::kAllGather,
                                  .delay = std::chrono::milliseconds(run % 3)}});
        {
          Engine engine(*rank.device, slow, {.prefetch = prefetch});
          const std::vector<GroupId> groups = add_groups(engine, 5);
          engine.build();
          pass(engine, groups);
          engine.step({.learning_rate = 0.1});
        }
        EXPECT_EQ(rank.device->stats().peak()[MemoryTag::kGathered], group * (prefetch + 1));
      });
    }
  }
}

// D2
TEST(Gatherer, PeakDoesNotGrowWithTheNumberOfGroups) {
  std::vector<Bytes> gathered, grads;
  for (const int count : {4, 16, 64}) {
    run_ranks(2, [&](Rank& rank) {
      Engine engine(*rank.device, *rank.communicator, {.prefetch = 2});
      const std::vector<GroupId> groups = add_groups(engine, count, 1000);
      engine.build();
      rank.device->stats().reset_peak();
      const Bytes shards = rank.device->stats().in_use()[MemoryTag::kGrads];
      pass(engine, groups);
      engine.step({.learning_rate = 0.1});
      if (rank.rank != 0) return;
      gathered.push_back(rank.device->stats().peak()[MemoryTag::kGathered]);
      grads.push_back(rank.device->stats().peak()[MemoryTag::kGrads] - shards);
    });
  }
  EXPECT_EQ(gathered, std::vector<Bytes>(3, gathered[0]));
  EXPECT_EQ(grads, std::vector<Bytes>(3, grads[0]));
}

TEST(Gatherer, UnequalGroupsNeedTheirLargestWindowAndNotTheLargestGroupOftenEnough) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.prefetch = 1});
    std::vector<GroupId> groups;
    for (const std::int64_t size : {20000, 2000, 10000, 2000})
      groups.push_back(
          engine.add_group(group_of("g" + std::to_string(size + std::ssize(groups)), {size})));
    engine.build();
    pass(engine, groups);
    const auto full = [](std::int64_t n) {
      return bytes_of(shard_size(Elements(n), 2) * 2, DType::kF32);
    };
    EXPECT_EQ(rank.device->stats().peak()[MemoryTag::kGathered], full(20000) + full(2000));
  });
}

TEST(Gatherer, BeyondTheBoundTheErrorNamesWhatIsHeldAndTheBytesNeeded) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.prefetch = 0});
    const std::vector<GroupId> groups = add_groups(engine, 2);
    engine.build();
    const Gathered held = engine.gather(groups[0]);
    EXPECT_TRUE(
        contains(message_of<UsageError>([&] { static_cast<void>(engine.gather(groups[1])); }),
                 {"'g1'", "'g0' is held", "rank " + std::to_string(rank.rank), "needs 32768 bytes",
                  "bound is 16384", "gathered_limit to at least 32768"}));
  });
}

TEST(Gatherer, ALargerBoundLetsSeveralGroupsBeHeld) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator,
                  {.prefetch = 0, .gathered_limit = Bytes(32768)});
    const std::vector<GroupId> groups = add_groups(engine, 2);
    engine.build();
    const Gathered first = engine.gather(groups[0]);
    const Gathered second = engine.gather(groups[1]);
    EXPECT_NE(first[0].data(), second[0].data());
  });
}

TEST(Gatherer, ABoundBelowTheWindowOfPrefetchGathersFewerAhead) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator,
                  {.prefetch = 2, .gathered_limit = Bytes(2 * 16384)});
    const std::vector<GroupId> groups = add_groups(engine, 4);
    EXPECT_EQ(engine.plan()[MemoryTag::kGathered], Bytes(2 * 16384));
    engine.build();
    pass(engine, groups);
    EXPECT_EQ(rank.device->stats().peak()[MemoryTag::kGathered], Bytes(2 * 16384));
  });
}

TEST(Gatherer, ABoundThatCannotWorkIsRefusedWithTheLeastThatDoes) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.gathered_limit = Bytes(16383)});
    add_groups(engine, 2);
    for (const auto& call : {std::function<void()>([&] { static_cast<void>(engine.plan()); }),
                             std::function<void()>([&] { engine.build(); })}) {
      EXPECT_TRUE(
          contains(message_of<UsageError>(call), {"gathered_limit is 16383", "at least 16384"}));
    }
  });
}

TEST(Gatherer, AHeldGroupMakesRoomByDroppingWhatIsOnItsWay) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.prefetch = 1});
    const std::vector<GroupId> groups = add_groups(engine, 4);
    engine.build();
    MicroStep scope = engine.begin_micro_step();
    const Gathered held = engine.gather(groups[0]);   // g1 is on its way
    const Gathered other = engine.gather(groups[3]);  // in its place
    EXPECT_EQ(gathered_now(rank), Bytes(2 * 16384));
    EXPECT_TRUE(held[0].alive());
  });
}

TEST(Gatherer, WithoutRoomAfterAnErrorTheGroupMayBeGatheredLater) {
  run_ranks(1, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.precision = {.param = DType::kBF16}});
    const GroupId id = engine.add_group(
        {.name = "g",
         .params = {
             {.name = "a", .shape = {1024}, .init = Init::ones()},
             {.name = "frozen", .shape = {1024}, .init = Init::ones(), .trainable = false}}});
    engine.build();
    // Room for one of the two sub-groups.
    rank.device->limit().set_limit(rank.device->stats().in_use().total() + Bytes(2048));
    EXPECT_TRUE(contains(
        message_of<OutOfMemoryError>([&] { static_cast<void>(engine.gather(id)); }), {"gathered"}));
    EXPECT_EQ(gathered_now(rank), Bytes(0));
    rank.device->limit().set_limit(Bytes(INT64_MAX));
    EXPECT_EQ(values_of(engine, engine.gather(id)[1]), std::vector<float>(1024, 1.0F));
  });
}

// C12: an evaluation that stops in the middle of its forward.
TEST(Gatherer, AnInferencePassLetsGoOfWhatIsOnItsWay) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.prefetch = 2});
    const std::vector<GroupId> groups = add_groups(engine, 6);
    engine.build();
    for (const std::size_t stop : {6U, 2U, 6U, 0U}) {
      {
        const InferencePass scope = engine.begin_inference();
        for (std::size_t i = 0; i < stop; ++i) static_cast<void>(engine.gather(groups[i]));
      }
      EXPECT_EQ(gathered_now(rank), Bytes(0)) << "stopped after " << stop;
    }
    pass(engine, groups);
    EXPECT_TRUE(engine.step({.learning_rate = 0.1}).applied);
  });
}

TEST(Gatherer, AnInferencePassIsPrefetchedInTheOrderOfTheLast) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.prefetch = 1});
    const std::vector<GroupId> groups = add_groups(engine, 3);
    engine.build();
    const auto forward = [&] {
      const InferencePass scope = engine.begin_inference();
      static_cast<void>(engine.gather(groups[2]));
      const std::int64_t on_its_way = gathered_now(rank) / Bytes(16384);
      static_cast<void>(engine.gather(groups[0]));
      return on_its_way;
    };
    EXPECT_EQ(forward(), 0);
    EXPECT_EQ(forward(), 1);
  });
}

// C12: branches; what was gathered for nothing goes.
TEST(Gatherer, ADeviatingMicroStepEndsWithNothingOnItsWay) {
  run_ranks(2, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.prefetch = 2});
    const std::vector<GroupId> groups = add_groups(engine, 5);
    engine.build();
    for (int step = 0; step < 4; ++step) {
      const std::size_t branch = step % 2 == 0 ? 1 : 3;
      pass(engine, {groups[0], groups[branch], groups[4]});
      EXPECT_EQ(gathered_now(rank), Bytes(0));
      EXPECT_TRUE(engine.step({.learning_rate = 0.1}).applied);
    }
  });
}

TEST(Gatherer, AStepWhileAGroupIsHeldIsRefused) {
  run_ranks(1, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    const GroupId id = engine.add_group(group_of("block.2", {10}));
    engine.build();
    micro_step_of(engine, {{id, 1.0F}});
    {
      const Gathered held = engine.gather(id);
      EXPECT_TRUE(contains(message_of<UsageError>([&] { engine.step({.learning_rate = 0.1}); }),
                           {"step()", "rank 0", "'block.2'", "out of date", "let go"}));
    }
    EXPECT_TRUE(engine.step({.learning_rate = 0.1}).applied);
  });
}

}  // namespace
}  // namespace zero3::test
