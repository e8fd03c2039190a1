#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <zero3/error.h>
#include "program/mpirun.h"
#include "support/contains.h"
#include "support/program.h"

namespace zero3::test {
namespace {

class Mpirun : public ::testing::Test {
 protected:
  void SetUp() override { skip_without_mpirun(); }

  /// A training of `tiny` by that many processes, with `more` flags.
  [[nodiscard]] Ended run(int ranks, const std::vector<std::string>& more,
                          const std::function<void(pid_t)>& watch = nullptr) const {
    std::vector<std::string> command = {ZERO3_PROGRAM,   "train", "--data", text_, "--threads", "1",
                                        "--batch",       "2",     "--seq",  "33",  "--steps",   "3",
                                        "--eval-tokens", "330"};
    command.insert(command.end(), more.begin(), more.end());
    return mpirun(ranks, command, watch);
  }
  [[nodiscard]] Ended run_and_signal(int signal, std::vector<std::string> more) const;

  TempDir dir_;
  std::string text_ = write_text(dir_, 20000);
};

TEST_F(Mpirun, AnyNumberOfRanksGivesTheBitsOfOneProcess) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const TrainOutput alone =
        train_tiny(text_, {"--accumulate", "12", "--dtype", dtype, "--eval-every", "0"});
    for (const char* path : {"auto", "messages"}) {
      for (const int ranks : {1, 2, 3, 4}) {
        const TrainOutput together =
            parse_training(run(ranks, {"--accumulate", std::to_string(12 / ranks), "--dtype", dtype,
                                       "--comm-path", path}));
        const std::string name = concat(ranks, ' ', dtype, ' ', path);
        EXPECT_EQ(together.timeless(), alone.timeless()) << name;
        EXPECT_EQ(together.done["val_loss"], alone.done["val_loss"]) << name;
        EXPECT_EQ(together.done["weights_checksum"], alone.done["weights_checksum"]) << name;
        EXPECT_EQ(together.done["peak_bytes"], together.done["planned_bytes"]) << name;
      }
    }
  }
}

/// The process that is rank 1 among the children of `mpirun`; -1: none yet.
pid_t second_rank(pid_t mpirun) {
  const std::string id = std::to_string(mpirun);
  std::ifstream children("/proc/" + id + "/task/" + id + "/children");
  for (pid_t child = 0; children >> child;) {
    std::ifstream environment("/proc/" + std::to_string(child) + "/environ", std::ios::binary);
    const std::string variables(std::istreambuf_iterator<char>(environment), {});
    if (variables.find("OMPI_COMM_WORLD_RANK=1") != std::string::npos) return child;
  }
  return -1;
}

/// An endless training of two ranks whose second gets a signal after two seconds.
Ended Mpirun::run_and_signal(int signal, std::vector<std::string> more) const {
  const auto begin = std::chrono::steady_clock::now();
  bool sent = false;
  more.insert(more.end(), {"--steps", "100000"});
  const Ended ended = run(2, more, [&](pid_t mpirun) {
    if (sent || std::chrono::steady_clock::now() - begin < std::chrono::seconds(2)) return;
    const pid_t rank = second_rank(mpirun);
    if (rank < 0) return;
    sent = true;
    kill(rank, signal);
  });
  EXPECT_TRUE(sent);
  return ended;
}

TEST_F(Mpirun, ARankThatStopsIsNamedByAll) {
  const Ended ended = run_and_signal(SIGSTOP, {"--comm-timeout", "1s"});
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(contains(ended.err, {"zero3: [rank 0] collective #", "rank 1 ",
                                   " after 1 s (rank 1 is stopped, process"}));
}

TEST_F(Mpirun, ARankThatIsKilledIsNamed) {
  const Ended ended = run_and_signal(SIGKILL, {});
  EXPECT_NE(ended.status, 0);
  EXPECT_TRUE(contains(ended.err, {"zero3: [rank 0]", "rank 1 has died (process"}));
}

// Whoever finds the contradiction would leave the others waiting in MPI, and mpirun may end it
// before it could say so, as if nobody heard it: the other rank says it too.
TEST_F(Mpirun, AContradictionOnOneRankEndsAll) {
  const Ended ended =
      spawn("/bin/sh",
            {"-c", concat(kMpirun,
                          " --oversubscribe -n 2 sh -c '"
                          "[ $OMPI_COMM_WORLD_RANK = 1 ] && "
                          "export OMPI_COMM_WORLD_RANK=0 && exec 2>/dev/null; exec ",
                          ZERO3_PROGRAM,
                          " train --threads 1 --batch 1 --seq 16 "
                          "--steps 1 --data ",
                          text_, "'")},
            {.environment = mpirun_environment()});
  EXPECT_NE(ended.status, -1);
  EXPECT_NE(ended.status, 0);
  EXPECT_TRUE(contains(ended.err,
                       {"zero3: rank 1: the launch (by Open MPI) says rank 0, MPI says rank 1"}));
}

class NarrowPlaces : public Mpirun {
 protected:
  [[nodiscard]] std::string training(int accumulate) const {
    return concat(ZERO3_PROGRAM,
                  " train --threads 1 --batch 2 --seq 33 --steps 3 --eval-tokens 330 --data ",
                  text_, " --accumulate ", accumulate);
  }
  [[nodiscard]] static Ended shell(const std::string& command) {
    return spawn("/bin/sh", {"-c", command}, {.environment = mpirun_environment()});
  }
  [[nodiscard]] std::string checksum_of_one_process(const std::string& accumulate) const {
    return train_tiny(text_, {"--accumulate", accumulate, "--eval-every", "0"})
        .done["weights_checksum"];
  }
};

TEST_F(NarrowPlaces, OtherUserNamespacesGetMessagesAndOneWarning) {
  if (shell("unshare -U -r true").status != 0) GTEST_SKIP() << "no user namespaces here";
  const Ended ended = shell(concat(kMpirun, " --oversubscribe -n 2 unshare -U -r ", training(6)));
  EXPECT_EQ(parse_training(ended).done["weights_checksum"], checksum_of_one_process("12"));
  const std::string warning = line_of(ended.err, "zero3: [rank 0] warning: ");
  EXPECT_TRUE(contains(warning, {"ranks 0, 1 cannot read each other's memory", "/proc/PID/fd"}));
  EXPECT_EQ(line_of(ended.err, "zero3: [rank 1]"), "");
}

TEST_F(NarrowPlaces, SmallSharedMemoryDoesNotMatter) {
  if (shell("unshare -m mount -t tmpfs tmpfs /dev/shm").status != 0)
    GTEST_SKIP() << "no mount namespaces here; needs root";
  const Ended ended =
      shell(concat("unshare -m sh -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm && ", kMpirun,
                   " --oversubscribe -n 4 ", training(3), "'"));
  EXPECT_EQ(parse_training(ended).done["weights_checksum"], checksum_of_one_process("12"));
  EXPECT_EQ(ended.err, "");
}

TEST_F(NarrowPlaces, SevenRanksOnOneCore) {
  for (const char* path : {"auto", "messages"}) {
    const Ended ended = shell(concat("taskset -c 0 ", kMpirun, " --oversubscribe -n 7 ",
                                     training(1), " --comm-path ", path));
    EXPECT_EQ(parse_training(ended).done["weights_checksum"], checksum_of_one_process("7"));
    EXPECT_EQ(ended.err, "");
  }
}

// Some scripts export them for other trainers.
TEST_F(NarrowPlaces, RankAndWorldSizeMayBeThereAsWell) {
  const Ended ended =
      shell(concat(kMpirun, " --oversubscribe -n 2 sh -c '",
                   "RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=2 exec ", training(6), "'"));
  EXPECT_EQ(parse_training(ended).done["weights_checksum"], checksum_of_one_process("12"));
}

TEST_F(NarrowPlaces, EveryRankWritesItsTrace) {
  const Ended ended = shell(concat(kMpirun, " --oversubscribe -n 2 ", training(1), " --trace ",
                                   dir_.path().string(), "/t.json"));
  EXPECT_EQ(ended.status, 0) << ended.err;
  for (const char* name : {"t.json", "t.rank1.json"}) {
    EXPECT_FALSE(Json::parse(content_of(dir_.path() / name)).empty()) << name;
  }
}

}  // namespace
}  // namespace zero3::test
