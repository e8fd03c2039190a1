#include "place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "support/contains.h"
#include "support/thrown.h"

namespace zero3::program {
namespace {

using test::contains;
using test::thrown;

TEST(Place, OneRankGetsAllCores) {
  const Place place = resolve_place({}, {});
  EXPECT_EQ(place.run.ranks, 1);
  EXPECT_EQ(place.run.threads, available_cores());
}

TEST(Place, LocalRanksShareTheCores) {
  const Place place = resolve_place({.comm = CommChoice::kLocal, .ranks = 2}, {});
  EXPECT_EQ(place.run.threads, std::max(1, available_cores() / 2));
}

TEST(Place, ThreadsOfARankCanBeChosen) {
  EXPECT_EQ(resolve_place({.threads = 3, .comm = CommChoice::kLocal, .ranks = 2}, {}).run.threads,
            3);
}

TEST(Place, NumberOfRanksAloneMeansLocalOnes) {
  EXPECT_EQ(resolve_place({.ranks = 4}, {}).run.ranks, 4);
}

TEST(Place, WorldOfOneInTheEnvironmentIsASingleProcess) {
  EXPECT_EQ(
      resolve_place({}, {{"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "0.0.0.0"}})
          .run.ranks,
      1);
}

TEST(Place, OpenMpiWithOneRankIsASingleProcess) {
  EXPECT_EQ(
      resolve_place({}, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}).run.ranks,
      1);
}

TEST(RunRanks, NamesTheRankThatFailedFirst) {
  const Place place = resolve_place({.threads = 1, .comm = CommChoice::kLocal, .ranks = 3}, {});
  const auto begin = std::chrono::steady_clock::now();
  const std::string message = thrown<RankFailure>([&] {
    run_ranks(place, {}, [](Device& device, Communicator& communicator) {
      const auto stream = device.make_stream({.name = "comm"});
      if (communicator.rank() == 1) throw IoError("the disk is full");
      communicator.barrier("all", *stream);
      stream->synchronize();
    });
  });
  EXPECT_EQ(message, "[rank 1] the disk is full");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(RunRanks, EveryRankHasADeviceWithItsLimit) {
  const Place place = resolve_place({.threads = 1, .comm = CommChoice::kLocal, .ranks = 2}, {});
  run_ranks(place, {.memory_limit = Bytes(1 << 20)},
            [](Device& device, Communicator& communicator) {
              EXPECT_EQ(device.limit().limit(), Bytes(1 << 20));
              EXPECT_EQ(communicator.world_size(), 2);
            });
}

TEST(RunRanks, AbsentRankIsNamedWithinTheTimeout) {
  const Place place = resolve_place({.threads = 1,
                                     .comm = CommChoice::kLocal,
                                     .ranks = 2,
                                     .timeout = std::chrono::milliseconds(200)},
                                    {});
  EXPECT_TRUE(contains(thrown<RankFailure>([&] {
                         run_ranks(place, {}, [](Device& device, Communicator& communicator) {
                           const auto stream = device.make_stream({.name = "comm"});
                           if (communicator.rank() == 1)
                             std::this_thread::sleep_for(std::chrono::seconds(1));
                           communicator.barrier("all", *stream);
                           stream->synchronize();
                         });
                       }),
                       {"barrier", "'all'", "rank 1"}));
}

}  // namespace
}  // namespace zero3::program
