#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine_ops.h"
#include "run_ranks.h"

/// Passes over groups that gather and compute nothing, and what they move and hold.
namespace zero3::test {

inline std::int64_t gathers(const Engine& engine) {
  return engine.comm_counters()[CollectiveOp::kAllGather].count;
}

inline Bytes gathered_now(const Rank& rank) {
  return rank.device->stats().in_use()[MemoryTag::kGathered];
}

/// `count` groups of 3000 elements named g0, g1, …
inline std::vector<GroupId> add_groups(Engine& engine, int count, std::int64_t size = 3000) {
  std::vector<GroupId> groups;
  for (int i = 0; i < count; ++i)
    groups.push_back(engine.add_group(group_of("g" + std::to_string(i), {size})));
  return groups;
}

/// One forward and one backward pass, with nothing computed.
inline void pass(Engine& engine, const std::vector<GroupId>& groups) {
  MicroStep scope = engine.begin_micro_step();
  for (const GroupId group : groups) static_cast<void>(engine.gather(group));
  for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
    static_cast<void>(engine.gather(*group));
    static_cast<void>(engine.grads(*group));
  }
  scope.end();
}

}  // namespace zero3::test
