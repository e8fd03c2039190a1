#include <zero3/memory_plan.h>

#include <fmt/format.h>

#include <zero3/error.h>

namespace zero3 {

MemoryPlan operator+(const MemoryPlan& a, const MemoryPlan& b) {
  MemoryPlan sum = a;
  for (std::size_t i = 0; i < kMemoryTagCount; ++i) sum.bytes[i] += b.bytes[i];
  return sum;
}

std::string to_table(const MemoryPlan& plan) {
  std::string table;
  for (std::size_t i = 0; i < kMemoryTagCount; ++i) {
    table +=
        fmt::format("  {:<12} {:>12}\n", name_of(static_cast<MemoryTag>(i)), concat(plan.bytes[i]));
  }
  return table + fmt::format("  {:<12} {:>12}\n", "total", concat(plan.total()));
}

void check_plan(const MemoryPlan& plan, Bytes limit) {
  ZERO3_CHECK(plan.total() <= limit, "the memory plan needs ", plan.total().count(), " bytes (",
              plan.total(), ") and the limit is ", limit.count(), " (", limit,
              "); the smallest limit that works is ", plan.total().count());
}

}  // namespace zero3
