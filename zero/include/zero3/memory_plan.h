#pragma once

#include <string>

#include <zero3/memory.h>
#include <zero3/units.h>

namespace zero3 {

/// The bytes that a rank will have in use at most, by tag, known before anything is allocated. Each
/// part of a program plans its own and they add up; a run's StatsResource::peak() equals the sum,
/// tag by tag.
using MemoryPlan = MemoryByTag;
[[nodiscard]] MemoryPlan operator+(const MemoryPlan& a, const MemoryPlan& b);
/// A table of tags, one per line, with the total.
[[nodiscard]] std::string to_table(const MemoryPlan& plan);

/// Throws UsageError that says the smallest limit that works, unless the plan fits. Call before the
/// first allocation.
void check_plan(const MemoryPlan& plan, Bytes limit);

}  // namespace zero3
