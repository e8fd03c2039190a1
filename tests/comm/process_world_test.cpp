#include "process/process_world.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>

#include <zero3/faulty_communicator.h>
#include "comm/worlds.h"
#include "support/contains.h"

namespace zero3::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Rank 0 in this process and rank 1 in one of its own, which runs `peer` and then stays, if it
/// has not ended by itself, until it is killed.
class TwoProcesses {
 public:
  TwoProcesses(std::chrono::milliseconds timeout, const std::function<void(Rank&)>& peer)
      : board_(2), child_(fork()) {
    if (child_ == 0) {
      try {
        Rank rank(end(1, timeout), options_of(kProcesses), nullptr);
        peer(rank);
        pause();
      } catch (...) {
      }
      _exit(1);
    }
    own_.emplace(end(0, timeout), options_of(kProcesses), nullptr);
  }
  ~TwoProcesses() {
    kill(child_, SIGKILL);
    if (waitpid(child_, nullptr, 0) < 0) ADD_FAILURE() << "no child to wait for";
  }
  TwoProcesses(const TwoProcesses&) = delete;
  TwoProcesses& operator=(const TwoProcesses&) = delete;

  Rank& own() { return *own_; }
  void send(int signal) const { kill(child_, signal); }
  [[nodiscard]] std::string child() const { return std::to_string(child_); }

 private:
  std::unique_ptr<Communicator> end(int rank, std::chrono::milliseconds timeout) {
    return process::make_process_communicator(std::make_shared<process::ProcessWorld>(
        std::make_unique<process::Board>(board_.path(), 2), rank, timeout));
  }
  process::Board board_;
  pid_t child_;
  std::optional<Rank> own_;
};

void gather(Rank& rank, int times) {
  const Buffer shard = rank.upload(std::vector<float>(1000, static_cast<float>(rank.rank) + 0.5F));
  const Buffer full = rank.allocate(2000);
  for (int i = 0; i < times; ++i) {
    rank.communicator->all_gather(full.view(), shard.view(), "block.3", *rank.stream);
    rank.stream->synchronize();
  }
  const auto values = rank.download<float>(full.view());
  EXPECT_EQ(values.front(), 0.5F);
  EXPECT_EQ(values.back(), 1.5F);
}

std::string error_of_gathers(TwoProcesses& processes, int times) {
  return message_of<CommError>([&] { gather(processes.own(), times); });
}

TEST(ProcessWorld, ProcessesReadEachOther) {
  TwoProcesses processes(60s, [](Rank& rank) { gather(rank, 50); });
  gather(processes.own(), 50);
}

TEST(ProcessWorld, ARankThatIsKilledIsNamedAtOnce) {
  TwoProcesses processes(60s, [](Rank& rank) { gather(rank, 3); });
  gather(processes.own(), 3);
  processes.send(SIGKILL);
  const auto begin = Clock::now();
  EXPECT_TRUE(contains(error_of_gathers(processes, 1),
                       {"collective #4, all_gather of 'block.3' (8000 bytes)",
                        "rank 1 has died (process " + processes.child() + ")"}));
  EXPECT_LT(Clock::now() - begin, 2s);
}

TEST(ProcessWorld, SoIsOneThatExitsInTheMiddle) {
  TwoProcesses processes(60s, [](Rank& rank) {
    rank.communicator = std::make_unique<FaultyCommunicator>(
        std::move(rank.communicator), std::vector<Fault>{{.kind = Fault::Kind::kExit, .at = 2}});
    gather(rank, 3);
  });
  EXPECT_TRUE(contains(error_of_gathers(processes, 3), {"collective #3", "rank 1 has died"}));
}

TEST(ProcessWorld, AStoppedRankIsNamedAfterTheTimeout) {
  TwoProcesses processes(300ms, [](Rank& rank) { gather(rank, 1); });
  gather(processes.own(), 1);
  processes.send(SIGSTOP);
  EXPECT_TRUE(contains(error_of_gathers(processes, 1),
                       {"collective #2, all_gather of 'block.3' (8000 bytes): rank 1 absent after "
                        "300 ms (rank 1 is stopped, process " +
                        processes.child() + ")"}));
}

TEST(ProcessWorld, AnExceptionOfARankIsTheErrorOfTheOther) {
  TwoProcesses processes(60s, [](Rank& rank) {
    gather(rank, 1);
    rank.communicator->abort("no backward of layer 3");
  });
  EXPECT_TRUE(contains(error_of_gathers(processes, 2), {"rank 1: no backward of layer 3"}));
}

TEST(ProcessWorld, ARankThatLeavesInPeaceIsNotDead) {
  TwoProcesses processes(60s, [](Rank& rank) {
    gather(rank, 2);
    rank.communicator.reset();
    _exit(0);
  });
  EXPECT_TRUE(contains(error_of_gathers(processes, 3),
                       {"rank 1 has ended after 2 collectives, rank 0 waits for it in "
                        "collective #3, all_gather of 'block.3'"}));
}

TEST(ProcessWorld, PrivateMemoryIsRefusedWithWhatToChange) {
  TwoProcesses processes(60s, [](Rank& rank) { gather(rank, 1); });
  const auto device = make_device({.threads = 1});
  const auto stream = device->make_stream({});
  const Buffer shard(Elements(1000), DType::kF32, MemoryTag::kShards, *stream);
  const Buffer full(Elements(2000), DType::kF32, MemoryTag::kGathered, *stream);
  processes.own().communicator->all_gather(full.view(), shard.view(), "block.3", *stream);
  EXPECT_TRUE(contains(message_of<CommError>([&] { stream->synchronize(); }),
                       {"rank 0", "DeviceOptions::shared"}));
}

}  // namespace
}  // namespace zero3::test
