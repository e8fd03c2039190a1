#include "prefetch_plan.h"

#include <algorithm>

namespace zero3 {

void PrefetchPlan::begin() {
  recorded_.clear();
  cursor_ = 0;
}

void PrefetchPlan::used(GroupId group) {
  recorded_.push_back(group);
  const auto found =
      std::find(expected_.begin() + static_cast<std::ptrdiff_t>(cursor_), expected_.end(), group);
  cursor_ = found == expected_.end() ? expected_.size()
                                     : static_cast<std::size_t>(found - expected_.begin()) + 1;
}

void PrefetchPlan::end() {
  expected_ = recorded_;
  cursor_ = expected_.size();
}

}  // namespace zero3
