#include <zero3/engine.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/contains.h"
#include "support/engine_ops.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

// Whole parameters

TEST(Engine, AWrittenParameterIsReadBack) {
  run_ranks(3, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.keep_gathered_below = Elements(9999)});
    const GroupId id = engine.add_group(group_of("w", {4000}, Init::ones()));
    engine.build();
    EXPECT_EQ(values_of(engine, engine.gather(id)[0])[3999], 1.0F);
    std::vector<float> values(4000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    engine.write_parameter("w", values);
    EXPECT_EQ(engine.read_parameter("w"), values);
    EXPECT_EQ(values_of(engine, engine.gather(id)[0]), values);
  });
}

TEST(Engine, ParametersAreAskedForByNameSizeAndTime) {
  one_rank({.micro_steps = 2}, [](Engine& engine, Rank&) {
    const GroupId id = engine.add_group(group_of("w", {3}));
    engine.build();
    EXPECT_TRUE(contains(usage_error([&] { static_cast<void>(engine.read_parameter("v")); }),
                         {"no parameter 'v'"}));
    const std::vector<float> two(2), three(3);
    EXPECT_TRUE(contains(usage_error([&] { engine.write_parameter("w", two); }),
                         {"'w'", "3 elements", "not 2"}));
    {
      const Gathered held = engine.gather(id);
      EXPECT_TRUE(contains(usage_error([&] { engine.write_parameter("w", three); }),
                           {"write_parameter", "group 'w' is gathered"}));
    }
    micro_step_of(engine, {{id, 1.0F}});
    EXPECT_TRUE(contains(usage_error([&] { engine.write_parameter("w", three); }),
                         {"'w'", "within a step"}));
  });
}

std::uint64_t checksum_of(int world_size, const std::vector<float>& values) {
  std::uint64_t sum = 0;
  run_ranks(world_size, [&](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {});
    engine.add_group(group_of("first", {1000}, Init::ones()));
    GroupSpec spec = group_of("w", {static_cast<std::int64_t>(values.size())});
    spec.params.push_back({.name = "frozen", .shape = {10}, .trainable = false});
    engine.add_group(spec);
    engine.build();
    engine.write_parameter("w", values);
    const std::uint64_t own = engine.weights_checksum();
    EXPECT_EQ(
        engine.gather_values(std::vector<double>{static_cast<double>(own >> 32)}, "all"),
        std::vector<double>(static_cast<std::size_t>(world_size), static_cast<double>(own >> 32)));
    if (rank.rank == 0) sum = own;
  });
  return sum;
}

TEST(Engine, TheChecksumDoesNotDependOnTheWorldSize) {
  const std::vector<float> values(5000, 0.25F);
  for (const int world_size : {2, 3, 4}) {
    EXPECT_EQ(checksum_of(world_size, values), checksum_of(1, values));
  }
}

TEST(Engine, TheChecksumSeesOneBitAndOnePlace) {
  const std::vector<float> values(5000, 0.25F);
  std::vector<float> changed = values, moved = values;
  changed[4999] = 0.25F + 0x1p-24F;
  moved[1] = 0.5F;
  std::vector<float> moved_on = values;
  moved_on[2] = 0.5F;
  EXPECT_NE(checksum_of(2, values), checksum_of(2, changed));
  EXPECT_NE(checksum_of(2, moved), checksum_of(2, moved_on));
}

// F1: what every rank gathers is the same after every step.
TEST(Engine, ReplicasAgreeAfterEveryStep) {
  run_ranks(3, [](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, {.precision = {.param = DType::kBF16}});
    const GroupId id = engine.add_group(group_of("w", {4099}));
    engine.build();
    for (int step = 0; step < 4; ++step) {
      const std::vector<float> values = values_of(engine, engine.gather(id)[0]);
      double hash = 0;
      for (std::size_t i = 0; i < values.size(); ++i)
        hash += static_cast<double>(values[i]) * static_cast<double>(i % 127 + 1);
      EXPECT_EQ(engine.gather_values({&hash, 1}, "replicas"), std::vector<double>(3, hash));
      micro_step_of(engine, {{id, static_cast<float>(rank.rank) + 0.5F}});
      engine.step({.learning_rate = 0.1});
    }
  });
}

// D8: what a step moves.
TEST(Engine, CountsAndBytesOfAStepAreThoseOfTheFormula) {
  run_ranks(2, [](Rank& rank) {
    EngineOptions options{.precision = {.param = DType::kBF16, .reduce = DType::kF32},
                          .micro_steps = 3};
    Engine engine(*rank.device, *rank.communicator, options);
    std::vector<GroupId> groups;
    for (int i = 0; i < 4; ++i)
      groups.push_back(engine.add_group(group_of("g" + std::to_string(i), {5000})));
    engine.build();
    const CommCounters before = engine.comm_counters();
    for (int m = 0; m < 3; ++m) {
      const MicroStep scope = engine.begin_micro_step();
      for (const GroupId id : groups) static_cast<void>(engine.gather(id));
      for (std::size_t i = 4; i-- > 0;) {
        static_cast<void>(engine.gather(groups[i]));
        static_cast<void>(engine.grads(groups[i]));
      }
    }
    engine.step({.learning_rate = 0.1});
    const CommCounters after = engine.comm_counters();
    const auto added = [&](CollectiveOp op) {
      return CommCounters::Entry{after[op].count - before[op].count,
                                 after[op].bytes - before[op].bytes};
    };
    // Shards of 3072 elements. The norm's report: tokens, 3 losses, 4 uses and 3 blocks of each
    // group, or the least that other exchanges need.
    const std::int64_t report = 8 + 64;
    EXPECT_EQ(added(CollectiveOp::kAllGather).count, 3 * 8 + 1);
    EXPECT_EQ(added(CollectiveOp::kAllGather).bytes, Bytes(3 * 8 * 3072 * 2 + report * 8));
    EXPECT_EQ(added(CollectiveOp::kReduceScatter).count, 3 * 4);
    EXPECT_EQ(added(CollectiveOp::kReduceScatter).bytes, Bytes(3 * 4 * 3072 * 4));
    for (const CollectiveOp op : {CollectiveOp::kAllReduce, CollectiveOp::kAllToAll,
                                  CollectiveOp::kBroadcast, CollectiveOp::kBarrier}) {
      EXPECT_EQ(added(op).count, 0) << name_of(op);
    }
  });
}

}  // namespace
}  // namespace zero3::test
