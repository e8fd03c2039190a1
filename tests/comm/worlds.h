#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "node/node_world.h"
#include "support/run_ranks.h"

namespace zero3::test {

/// The worlds that one test is run in.
struct TestWorld {
  /// Of a stepped executor; none: threads.
  std::optional<std::uint64_t> seed = std::nullopt;
  /// Ranks that share nothing but memory mapped from files, as processes do, though they are
  /// threads here.
  bool node = false;
  friend void PrintTo(const TestWorld& world, std::ostream* out) {
    *out << (world.node ? "node" : world.seed ? "stepped" : "threads");
  }
};
inline constexpr TestWorld kThreads{};
inline constexpr TestWorld kNode{.node = true};
inline constexpr TestWorld stepped(std::uint64_t seed) {
  return {.seed = seed};
}

inline std::string world_name(const ::testing::TestParamInfo<TestWorld>& test_case) {
  if (test_case.param.node) return "Node";
  return test_case.param.seed ? concat("Stepped", *test_case.param.seed) : "Threaded";
}

inline RanksOptions options_of(const TestWorld& world, DeviceKind kind = DeviceKind::kCpu,
                               std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  RanksOptions options{.seed = world.seed, .kind = kind, .timeout = timeout};
  if (!world.node) return options;
  options.world = [timeout](int size) {
    auto board = std::make_shared<node::Board>(size);
    return [board, timeout](int rank) {
      return node::make_node_communicator(std::make_shared<node::NodeWorld>(
          std::make_unique<node::Board>(board->path(), board->ranks()), rank, timeout));
    };
  };
  return options;
}

}  // namespace zero3::test
