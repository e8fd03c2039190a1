#include <gtest/gtest.h>

#include <zero3/error.h>
#include <zero3/launch.h>
#include "support/contains.h"

namespace zero3 {
namespace {

using test::contains;

std::string error_of(const Environment& environment, const LaunchArguments& arguments = {}) {
  try {
    static_cast<void>(resolve_launch(environment, arguments));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Launch, OfNothingIsASingleProcess) {
  const Launch launch = resolve_launch({});
  EXPECT_EQ(launch.by, Launch::By::kNobody);
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.world_size, 1);
  EXPECT_EQ(launch.local_rank, 0);
  EXPECT_EQ(launch.master_address, "127.0.0.1");
  EXPECT_EQ(launch.master_port, 29500);
}

TEST(Launch, AcceptsTheCommonLineForOneProcess) {
  const Launch launch = resolve_launch({{"WORLD_SIZE", "1"},
                                        {"LOCAL_RANK", "0"},
                                        {"MASTER_ADDR", "0.0.0.0"},
                                        {"MASTER_PORT", "29500"}});
  EXPECT_EQ(launch.by, Launch::By::kEnvironment);
  EXPECT_EQ(launch.world_size, 1);
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.master_address, "0.0.0.0");
}

TEST(Launch, ReadsRankAndWorldSize) {
  const Launch launch = resolve_launch({{"RANK", "5"},
                                        {"WORLD_SIZE", "8"},
                                        {"LOCAL_RANK", "1"},
                                        {"MASTER_ADDR", "node0"},
                                        {"MASTER_PORT", "1234"}});
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.world_size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.master_address, "node0");
  EXPECT_EQ(launch.master_port, 1234);
}

TEST(Launch, ReadsOpenMpi) {
  const Launch launch = resolve_launch({{"OMPI_COMM_WORLD_RANK", "2"},
                                        {"OMPI_COMM_WORLD_SIZE", "4"},
                                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  EXPECT_EQ(launch.by, Launch::By::kOpenMpi);
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.world_size, 4);
  EXPECT_EQ(launch.local_rank, 1);
}

TEST(Launch, ReadsPmi) {
  const Launch launch = resolve_launch({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}});
  EXPECT_EQ(launch.by, Launch::By::kPmi);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.world_size, 3);
}

TEST(Launch, ReadsAStepOfSrun) {
  const Launch launch = resolve_launch({{"SLURM_STEP_ID", "0"},
                                        {"SLURM_PROCID", "3"},
                                        {"SLURM_NTASKS", "4"},
                                        {"SLURM_LOCALID", "1"}});
  EXPECT_EQ(launch.by, Launch::By::kSlurm);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.world_size, 4);
  EXPECT_EQ(launch.local_rank, 1);
}

TEST(Launch, PrefersTheSizeOfTheStepToThatOfTheJob) {
  const Launch launch = resolve_launch({{"SLURM_STEP_ID", "1"},
                                        {"SLURM_PROCID", "1"},
                                        {"SLURM_NTASKS", "4"},
                                        {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_EQ(launch.world_size, 2);
}

TEST(Launch, ABatchScriptIsASingleProcess) {
  const Environment batch{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}};
  EXPECT_EQ(resolve_launch(batch).world_size, 1);
  Environment numbered = batch;
  numbered["SLURM_STEP_ID"] = "4294967291";  // the number that Slurm gives batch scripts
  EXPECT_EQ(resolve_launch(numbered).by, Launch::By::kNobody);
}

TEST(Launch, SlurmTasksThatStartRanksDoNotContradictThem) {
  const Environment agents{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}};
  Environment mpi = agents;
  mpi["OMPI_COMM_WORLD_RANK"] = "7";
  mpi["OMPI_COMM_WORLD_SIZE"] = "8";
  EXPECT_EQ(resolve_launch(mpi).rank, 7);
  Environment torchrun = agents;
  torchrun["RANK"] = "7";
  torchrun["WORLD_SIZE"] = "8";
  EXPECT_EQ(resolve_launch(torchrun).rank, 7);
}

TEST(Launch, TakesTheRankFromTheLauncherWhereOnlyTheSizeIsSet) {
  const Launch by_mpi = resolve_launch(
      {{"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(by_mpi.rank, 1);
  EXPECT_EQ(by_mpi.by, Launch::By::kEnvironment);
  const Launch by_slurm = resolve_launch(
      {{"WORLD_SIZE", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}});
  EXPECT_EQ(by_slurm.rank, 1);
}

TEST(Launch, ArgumentsWinOverTheEnvironment) {
  const Launch launch = resolve_launch({{"RANK", "0"},
                                        {"WORLD_SIZE", "4"},
                                        {"OMPI_COMM_WORLD_RANK", "1"},
                                        {"OMPI_COMM_WORLD_SIZE", "2"}},
                                       {.rank = 2, .world_size = 3, .local_rank = 1});
  EXPECT_EQ(launch.by, Launch::By::kArguments);
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.world_size, 3);
  EXPECT_EQ(launch.local_rank, 1);
}

TEST(Launch, RefusesWhatIsNoNumber) {
  for (const char* text : {"abc", "", "1x", " 1", "1.0", "+1", "0x1", "99999999999999999999"}) {
    EXPECT_TRUE(contains(error_of({{"RANK", text}, {"WORLD_SIZE", "2"}}),
                         {"RANK", text, "not a whole number"}));
  }
}

TEST(Launch, RefusesARankOutsideTheWorld) {
  EXPECT_TRUE(contains(error_of({{"RANK", "3"}, {"WORLD_SIZE", "2"}}), {"RANK=3", "WORLD_SIZE=2"}));
  EXPECT_TRUE(contains(error_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), {"RANK=2"}));
  EXPECT_TRUE(contains(error_of({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), {"RANK=-1"}));
  EXPECT_TRUE(
      contains(error_of({{"WORLD_SIZE", "4"}, {"RANK", "0"}}, {.world_size = 1, .local_rank = 1}),
               {"local_rank=1"}));
}

TEST(Launch, RefusesALocalRankOutsideTheWorld) {
  EXPECT_TRUE(contains(error_of({{"LOCAL_RANK", "1"}}), {"LOCAL_RANK=1"}));
}

TEST(Launch, RefusesAnEmptyWorld) {
  EXPECT_TRUE(contains(error_of({{"WORLD_SIZE", "0"}}), {"WORLD_SIZE=0"}));
  EXPECT_TRUE(contains(error_of({}, {.world_size = -1}), {"world_size=-1"}));
}

TEST(Launch, RefusesARankWithoutAWorldSize) {
  EXPECT_TRUE(contains(error_of({{"RANK", "0"}}), {"RANK=0", "WORLD_SIZE"}));
  EXPECT_TRUE(contains(error_of({{"OMPI_COMM_WORLD_RANK", "1"}}), {"OMPI_COMM_WORLD_SIZE"}));
  EXPECT_TRUE(contains(error_of({{"PMI_SIZE", "2"}}), {"PMI_RANK"}));
}

TEST(Launch, RefusesAWorldOfSeveralWithoutARank) {
  EXPECT_TRUE(contains(error_of({{"WORLD_SIZE", "2"}}), {"WORLD_SIZE=2", "RANK"}));
  EXPECT_TRUE(contains(error_of({}, {.world_size = 2}), {"world_size=2"}));
}

TEST(Launch, RefusesAPortThatIsNone) {
  EXPECT_TRUE(contains(error_of({{"MASTER_PORT", "99999"}}), {"MASTER_PORT=99999"}));
  EXPECT_TRUE(contains(error_of({{"MASTER_PORT", "0"}}), {"MASTER_PORT=0"}));
  EXPECT_TRUE(contains(error_of({{"MASTER_PORT", "http"}}), {"MASTER_PORT='http'"}));
  EXPECT_EQ(resolve_launch({{"MASTER_PORT", "65535"}}).master_port, 65535);
}

TEST(Launch, RefusesAnEmptyAddress) {
  EXPECT_TRUE(contains(error_of({{"MASTER_ADDR", ""}}), {"MASTER_ADDR"}));
}

TEST(Launch, NamesBothSidesOfAContradiction) {
  EXPECT_TRUE(contains(error_of({{"WORLD_SIZE", "2"},
                                 {"RANK", "0"},
                                 {"OMPI_COMM_WORLD_SIZE", "1"},
                                 {"OMPI_COMM_WORLD_RANK", "0"}}),
                       {"WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE=1"}));
  EXPECT_TRUE(
      contains(error_of({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}),
               {"RANK=0", "PMI_RANK=1"}));
}

TEST(Launch, RefusesAGroupOfAnotherSize) {
  const Launch launch = resolve_launch({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  EXPECT_NO_THROW(check_launch_matches(launch, 2));
  try {
    check_launch_matches(launch, 1);
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_TRUE(contains(error.what(), {"has 2 ranks", "the communicator 1"}));
  }
}

}  // namespace
}  // namespace zero3
