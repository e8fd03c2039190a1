// Ranks that do not do the same, or that fail: an error on every rank, and no hang.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/contains.h"
#include "support/engine_ops.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

/// Threads, and one seed of each way in which the stepped executor chooses.
class Failures : public testing::TestWithParam<std::optional<std::uint64_t>> {
 protected:
  [[nodiscard]] RanksOptions options() const {
    return {.seed = GetParam(), .timeout = std::chrono::seconds(20)};
  }
};

struct Model {
  explicit Model(Rank& rank) : engine(*rank.device, *rank.communicator, {}) {
    for (const char* name : {"block.0", "block.1", "block.2"})
      groups.push_back(engine.add_group(group_of(name, {3000})));
    engine.build();
  }
  void forward() {
    for (const GroupId id : groups) static_cast<void>(engine.gather(id));
  }
  void step() {
    {
      const MicroStep scope = engine.begin_micro_step();
      forward();
      for (auto id = groups.rbegin(); id != groups.rend(); ++id) {
        static_cast<void>(engine.gather(*id));
        static_cast<void>(engine.grads(*id));
      }
    }
    engine.step({.learning_rate = 0.1});
  }
  Engine engine;
  std::vector<GroupId> groups;
};

// C2
TEST_P(Failures, ARankThatRunsFewerStepsIsNamed) {
  const std::string error = message_of<CommError>([&] {
    run_ranks(
        2,
        [](Rank& rank) {
          Model model(rank);
          for (int step = 0; step < 5 + 2 * rank.rank; ++step) model.step();
        },
        options());
  });
  EXPECT_TRUE(contains(error, {"rank 0 has ended", "rank 1 waits", "all_gather", "'block.0'"}));
}

// C2
TEST_P(Failures, SoIsOneInALoopOfForwards) {
  const std::string error = message_of<CommError>([&] {
    run_ranks(
        2,
        [](Rank& rank) {
          Model model(rank);
          for (int i = 0; i < 7 - 2 * rank.rank; ++i) {
            const InferencePass pass = model.engine.begin_inference();
            model.forward();
          }
          model.engine.synchronize();
        },
        options());
  });
  EXPECT_TRUE(contains(error, {"rank 1 has ended", "rank 0 waits", "all_gather", "'block."}));
}

// C3
TEST_P(Failures, GroupsOfOneSizeInAnotherOrderAreNotMixed) {
  const std::string error = message_of<CommError>([&] {
    run_ranks(
        2,
        [](Rank& rank) {
          Model model(rank);
          const std::size_t first = rank.rank == 0 ? 0 : 2;
          static_cast<void>(model.engine.gather(model.groups[first]));
          static_cast<void>(model.engine.gather(model.groups[2 - first]));
          model.engine.synchronize();
        },
        options());
  });
  EXPECT_TRUE(contains(error, {"all_gather of 'block.0'", "all_gather of 'block.2'", "rank 0",
                               "rank 1", "same collectives"}));
}

// C3, in the backward: the rank itself is told, the other is released.
TEST_P(Failures, GradientsInAnotherOrderAreRefusedWhereItHappens) {
  std::string at_rank_0;
  const std::string error = message_of<UsageError>([&] {
    run_ranks(
        2,
        [&](Rank& rank) {
          Model model(rank);
          const auto use = [&](const std::vector<std::size_t>& order) {
            const MicroStep scope = model.engine.begin_micro_step();
            for (const std::size_t i : order)
              static_cast<void>(model.engine.grads(model.groups[i]));
          };
          if (rank.rank == 1) return use({2, 0, 1});
          use({2, 1, 0});
          at_rank_0 = message_of<CommError>([&] { model.engine.step({.learning_rate = 0.1}); });
        },
        options());
  });
  EXPECT_TRUE(contains(error, {"'block.1'", "rank 1", "after those of 'block.0'"}));
  EXPECT_TRUE(contains(at_rank_0, {"rank 1"}));
}

// C10, on one rank.
TEST_P(Failures, AnExceptionOfOneRankReleasesTheOthersWithItsName) {
  std::vector<std::string> seen(3);
  const std::string error = message_of<std::runtime_error>([&] {
    run_ranks(
        3,
        [&](Rank& rank) {
          Model model(rank);
          model.step();
          if (rank.rank != 2) {
            seen[static_cast<std::size_t>(rank.rank)] =
                message_of<CommError>([&] { model.step(); });
            return;
          }
          const MicroStep scope = model.engine.begin_micro_step();
          model.forward();
          const Gradients grads = model.engine.grads(model.groups[2]);
          throw std::runtime_error("no more paper");
        },
        options());
  });
  EXPECT_EQ(error, "no more paper");
  EXPECT_TRUE(contains(seen[0], {"rank 2"}));
  EXPECT_TRUE(contains(seen[1], {"rank 2"}));
}

// C10: a reset is an agreement; one rank alone does not make it.
TEST_P(Failures, AResetOfOneRankAloneIsAnError) {
  const std::string error = message_of<CommError>([&] {
    run_ranks(
        2,
        [](Rank& rank) {
          Model model(rank);
          if (rank.rank == 0) model.engine.reset();
          model.step();
        },
        options());
  });
  EXPECT_TRUE(contains(error, {"barrier", "'reset'", "all_gather of 'block.0'"}));
}

// What fails on one rank's own stream is everybody's error, and names it.
TEST_P(Failures, AnErrorOnAComputeStreamReachesEveryRank) {
  std::string at_rank_0;
  const std::string error = message_of<std::runtime_error>([&] {
    run_ranks(
        2,
        [&](Rank& rank) {
          Model model(rank);
          if (rank.rank == 1)
            model.engine.compute().call("layer",
                                        [] { throw std::runtime_error("token 99 of 50"); });
          if (rank.rank == 1) return model.step();
          at_rank_0 = message_of<CommError>([&] { model.step(); });
        },
        options());
  });
  EXPECT_TRUE(contains(error, {"token 99 of 50"}));
  EXPECT_TRUE(contains(at_rank_0, {"rank 1", "token 99 of 50"}));
}

INSTANTIATE_TEST_SUITE_P(, Failures, testing::Values(std::nullopt, 0, 1, 2, 3, 4, 5, 6, 7),
                         executor_name);

}  // namespace
}  // namespace zero3::test
