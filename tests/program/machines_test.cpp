// Several machines, as network namespaces of this one: machines.sh.
#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include <zero3/error.h>
#include "program/mpirun.h"
#include "support/contains.h"
#include "support/program.h"

namespace zero3::test {
namespace {

class Machines : public testing::Test {
 protected:
  void SetUp() override {
    skip_without_mpirun();
    if (machines({"up", name_, "3"}).status != 0 ||
        machines({"on", name_, "1", "true"}).status != 0) {
      GTEST_SKIP() << "no network namespaces here; needs root and iproute2";
    }
  }
  ~Machines() override { static_cast<void>(machines({"down", name_})); }

  [[nodiscard]] static Ended machines(const std::vector<std::string>& arguments,
                                      const std::function<void(pid_t)>& watch = nullptr,
                                      std::vector<std::string> more_environment = {},
                                      std::chrono::seconds limit = std::chrono::seconds(60)) {
    std::vector<std::string> environment = mpirun_environment();
    environment.insert(environment.end(), more_environment.begin(), more_environment.end());
    return spawn(ZERO3_MACHINES, arguments,
                 {.environment = environment, .limit = limit, .watch = watch});
  }

  /// A training of `tiny`: ranks[i] of its ranks on machine i + 1.
  [[nodiscard]] Ended train(const std::vector<int>& ranks, const std::string& more,
                            const std::function<void(pid_t)>& watch = nullptr,
                            std::chrono::seconds limit = std::chrono::seconds(60)) const {
    std::string hosts;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      hosts += concat(i == 0 ? "" : ",", "10.213.7.", i + 1, ':', ranks[i]);
    }
    return machines({"on",
                     name_,
                     "1",
                     "mpirun",
                     "--mca",
                     "plm_rsh_agent",
                     ZERO3_MACHINES,
                     "--oversubscribe",
                     "--bind-to",
                     "none",
                     "--host",
                     hosts,
                     ZERO3_PROGRAM,
                     "train",
                     "--data",
                     text_,
                     "--threads",
                     "1",
                     "--batch",
                     "2",
                     "--seq",
                     "33",
                     "--eval-tokens",
                     "330",
                     more},
                    watch, {"MACHINES=" + name_}, limit);
  }
  /// Runs for each process of rank `rank` on machine `machine`, with its number in $p.
  void for_each_rank(int machine, int rank, const std::string& command) const {
    const Ended ended =
        spawn("/bin/sh",
              {"-c", concat("for p in $(ip netns pids ", name_, '-', machine,
                            "); do grep -qz OMPI_COMM_WORLD_RANK=", rank,
                            " /proc/$p/environ && grep -q train /proc/$p/cmdline && ", command,
                            "; done; true")},
              {.environment = mpirun_environment()});
    EXPECT_EQ(ended.out + ended.err, "");
  }

  std::string name_ = concat("z3m", getpid());
  TempDir dir_;
  std::string text_ = write_text(dir_, 20000);
};

TEST_F(Machines, GiveTheBitsOfOneProcess) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const TrainOutput alone =
        train_tiny(text_, {"--accumulate", "12", "--dtype", dtype, "--eval-every", "0"});
    for (const std::vector<int>& ranks : {std::vector<int>{1, 1}, {2, 1}, {2, 1, 1}}) {
      int total = 0;
      for (const int here : ranks) total += here;
      const TrainOutput together = parse_training(
          train(ranks, concat("--steps 3 --accumulate ", 12 / total, " --dtype ", dtype)));
      EXPECT_EQ(together.timeless(), alone.timeless()) << total << dtype;
      EXPECT_EQ(together.done["val_loss"], alone.done["val_loss"]) << total << dtype;
      EXPECT_EQ(together.done["weights_checksum"], alone.done["weights_checksum"]) << total;
      EXPECT_EQ(together.done["peak_bytes"], together.done["planned_bytes"]) << total;
    }
  }
}

// mpirun itself waits long for a machine that it has lost; the ranks do not.
TEST_F(Machines, ACutLinkIsAnErrorThatNamesWhoWasWaitedFor) {
  const auto begin = std::chrono::steady_clock::now();
  bool cut = false;
  const auto cut_after_a_while = [&](pid_t) {
    if (cut || std::chrono::steady_clock::now() - begin < std::chrono::seconds(3)) return;
    cut = true;
    EXPECT_EQ(machines({"link", name_, "2", "down"}).status, 0);
  };
  const Ended ended = train({2, 1}, "--steps 1000000 --comm-timeout 4s", cut_after_a_while,
                            std::chrono::seconds(12));
  EXPECT_TRUE(cut);
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(
        contains(line_of(ended.err, concat("zero3: [rank ", rank, "] ")),
                 {"collective #", "rank 2 ", " after 4 s", "no sign of life of rank 2 for "}))
        << ended.err;
    for_each_rank(1, rank, "echo rank $p is still there");
  }
  for_each_rank(2, 2, "echo rank $p is still there");
}

// By those of its machine: Open MPI ends a rank that loses a connection, before a letter comes.
TEST_F(Machines, ARankThatIsKilledIsNamed) {
  const auto begin = std::chrono::steady_clock::now();
  bool killed = false;
  const Ended ended = train({1, 2}, "--steps 1000000", [&](pid_t) {
    if (killed || std::chrono::steady_clock::now() - begin < std::chrono::seconds(3)) return;
    killed = true;
    for_each_rank(2, 2, "kill -9 $p");
  });
  EXPECT_TRUE(killed);
  EXPECT_GT(ended.status, 0);
  EXPECT_TRUE(contains(line_of(ended.err, "zero3: [rank 1] "), {"rank 2 has died"})) << ended.err;
  for_each_rank(1, 0, "echo rank $p is still there");
}

// What a rank says about itself comes as a letter.
TEST_F(Machines, AStoppedRankIsNamedOnAllMachines) {
  const auto begin = std::chrono::steady_clock::now();
  bool stopped = false;
  const Ended ended = train({1, 2}, "--steps 1000000 --comm-timeout 2s", [&](pid_t) {
    if (stopped || std::chrono::steady_clock::now() - begin < std::chrono::seconds(3)) return;
    stopped = true;
    for_each_rank(2, 2, "kill -STOP $p");
  });
  EXPECT_TRUE(stopped);
  EXPECT_GT(ended.status, 0);
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(contains(line_of(ended.err, concat("zero3: [rank ", rank, "] ")),
                         {"collective #", "rank 2 ", " after 2 s"}))
        << ended.err;
  }
}

}  // namespace
}  // namespace zero3::test
