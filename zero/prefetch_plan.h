#pragma once

#include <span>
#include <vector>

#include <zero3/param_spec.h>

namespace zero3 {

/// The order in which a pass gathers groups: what was declared at first, then what the last pass
/// did. Says what comes next. A pass that deviates only loses prefetches.
class PrefetchPlan {
 public:
  explicit PrefetchPlan(std::vector<GroupId> expected = {}) : expected_(std::move(expected)) {}

  void begin();
  /// A group was asked for.
  void used(GroupId group);
  /// What is expected after the last use, in order; nothing after a use that was not expected.
  [[nodiscard]] std::span<const GroupId> upcoming() const {
    return std::span(expected_).subspan(cursor_);
  }
  /// The pass is complete: the next one is expected to do the same.
  void end();

 private:
  std::vector<GroupId> expected_, recorded_;
  std::size_t cursor_ = 0;
};

}  // namespace zero3
