#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "comm/message_double.h"
#include "process/process_group.h"
#include "support/run_ranks.h"

namespace zero3::test {

/// The worlds that one test is run in.
struct TestWorld {
  enum class Kind : std::uint8_t {
    kThreads,
    kStepped,
    /// Ranks that share nothing but memory mapped from files, as processes do, though they are
    /// threads here.
    kProcesses,
    /// Ranks that share nothing and have messages.
    kMessages,
    /// Ranks 0 and 1 share memory, 2 and 3, and so on; the others are far.
    kPairs
  };
  Kind kind = Kind::kThreads;
  std::uint64_t seed = 0;
  friend void PrintTo(const TestWorld& world, std::ostream* out) { *out << world.name(); }
  [[nodiscard]] std::string name() const {
    switch (kind) {
      case Kind::kThreads:
        return "Threaded";
      case Kind::kStepped:
        return concat("Stepped", seed);
      case Kind::kProcesses:
        return "Processes";
      case Kind::kMessages:
        return "Messages";
      case Kind::kPairs:
        return "Pairs";
    }
    return "";
  }
};
inline constexpr TestWorld kThreads{};
inline constexpr TestWorld kProcesses{.kind = TestWorld::Kind::kProcesses};
inline constexpr TestWorld kMessages{.kind = TestWorld::Kind::kMessages};
inline constexpr TestWorld kPairs{.kind = TestWorld::Kind::kPairs};
inline constexpr TestWorld stepped(std::uint64_t seed) {
  return {.kind = TestWorld::Kind::kStepped, .seed = seed};
}

inline std::string world_name(const ::testing::TestParamInfo<TestWorld>& test_case) {
  return test_case.param.name();
}

/// Ranks that are processes as far as they know: as many as `near` share a board, in order.
class ProcessWorlds {
 public:
  ProcessWorlds(int ranks, int near, std::chrono::milliseconds timeout)
      : ranks_(ranks), near_(near), timeout_(timeout), messages(ranks) {
    for (int rank = 0; rank < ranks; rank += near) {
      boards_.push_back(std::make_unique<process::Board>(ranks));
    }
  }

  [[nodiscard]] std::shared_ptr<process::ProcessWorld> world(int rank) {
    const process::Board& board = *boards_[static_cast<std::size_t>(rank / near_)];
    std::vector<bool> far(static_cast<std::size_t>(ranks_));
    for (int peer = 0; peer < ranks_; ++peer)
      far[static_cast<std::size_t>(peer)] = peer / near_ != rank / near_;
    auto world = std::make_shared<process::ProcessWorld>(
        std::make_unique<process::Board>(board.path(), ranks_), rank, timeout_, std::move(far),
        &messages.end(rank));
    messages.connect(rank, world);
    return world;
  }
  [[nodiscard]] std::unique_ptr<Communicator> end(int rank) {
    return process::make_process_communicator(world(rank));
  }

 private:
  int ranks_, near_;
  std::chrono::milliseconds timeout_;
  std::vector<std::unique_ptr<process::Board>> boards_;

 public:
  MessageDouble messages;
};

inline RanksOptions options_of(const TestWorld& world, DeviceKind kind = DeviceKind::kCpu,
                               std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  using Kind = TestWorld::Kind;
  RanksOptions options{.kind = kind, .timeout = timeout};
  if (world.kind == Kind::kStepped) options.seed = world.seed;
  if (world.kind == Kind::kThreads || world.kind == Kind::kStepped) return options;
  options.world = [kind = world.kind, timeout](int size) {
    const int near = kind == Kind::kMessages ? 1 : kind == Kind::kPairs ? 2 : size;
    auto worlds = std::make_shared<ProcessWorlds>(size, near, timeout);
    return [worlds](int rank) { return worlds->end(rank); };
  };
  return options;
}

}  // namespace zero3::test
