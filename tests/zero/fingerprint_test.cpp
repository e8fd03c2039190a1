#include "fingerprint.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "support/contains.h"
#include "support/engine_ops.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

using Build = std::function<void(Engine&, int rank)>;

/// What build() throws on rank `asked` of `world_size`, whose ranks register as `build` does.
std::string error_of_build(int asked, int world_size, const Build& build,
                           const std::function<EngineOptions(int)>& options) {
  std::string message;
  run_ranks(world_size, [&](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, options(rank.rank));
    build(engine, rank.rank);
    const std::string error = message_of<UsageError>([&] { engine.build(); });
    if (rank.rank == asked) message = error;
  });
  return message;
}

EngineOptions same_options(int) {
  return {};
}

void two_parameters_but_one_on_rank_1(Engine& engine, int rank) {
  GroupSpec group{.name = "g", .params = {{.name = "a", .shape = {3}}}};
  if (rank != 1) group.params.push_back({.name = "b", .shape = {4, 5}});
  engine.add_group(group);
}

// C11
TEST(Fingerprint, AMissingParameterIsNamedOnEveryRank) {
  for (const int rank : {0, 1, 2}) {
    EXPECT_TRUE(contains(
        error_of_build(rank, 3, two_parameters_but_one_on_rank_1, same_options),
        {"rank 0 has parameter 'b' of shape [4, 5]", "rank 1 has nothing more", "every rank"}));
  }
}

TEST(Fingerprint, AnotherShapeIsShownOnBothSides) {
  const auto build = [](Engine& engine, int rank) { engine.add_group(group_of("w", {7 + rank})); };
  EXPECT_TRUE(contains(error_of_build(1, 2, build, same_options), {"[7]", "[8]", "'w'"}));
}

TEST(Fingerprint, AnotherInitIsADifference) {
  const auto build = [](Engine& engine, int rank) {
    engine.add_group(group_of("w", {7}, rank == 0 ? Init::zeros() : Init::normal(0.5F)));
  };
  EXPECT_TRUE(contains(error_of_build(0, 2, build, same_options),
                       {"from zeros", "from normal values of deviation 0.5"}));
}

TEST(Fingerprint, AnotherOptionIsNamedWithBothValues) {
  const auto build = [](Engine& engine, int) { engine.add_group(group_of("w", {7})); };
  const auto micro_steps = [](int rank) { return EngineOptions{.micro_steps = 1 + rank}; };
  EXPECT_TRUE(contains(error_of_build(0, 2, build, micro_steps),
                       {"rank 0 has micro_steps 1", "rank 1 has micro_steps 2", "options"}));
}

TEST(Fingerprint, ADifferenceInTheLastDigitIsOne) {
  const auto build = [](Engine& engine, int) { engine.add_group(group_of("w", {7})); };
  const auto clip = [](int rank) { return EngineOptions{.clip = 1.0 + 1e-15 * rank}; };
  EXPECT_TRUE(contains(error_of_build(0, 2, build, clip), {"clip 1", "clip 1.000000000000001"}));
}

TEST(Fingerprint, EqualRegistrationsBuild) {
  const auto build = [](Engine& engine, int) { engine.add_group(group_of("w", {7})); };
  EXPECT_EQ(error_of_build(0, 2, build, same_options), "nothing was thrown");
}

}  // namespace
}  // namespace zero3::test
