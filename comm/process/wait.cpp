#include "process/wait.h"

#include <algorithm>
#include <iterator>

namespace zero3::process {
Wait::~Wait() {
  if (told_) world_.waits_long(-1);
}

bool Wait::has_lasted(std::chrono::milliseconds time) const {
  return std::chrono::steady_clock::now() - begin_ >= time;
}

bool Wait::is_late() {
  if (!told_ && has_lasted(world_.timeout() / 2)) {
    told_ = true;
    world_.waits_long(1);
  }
  return has_lasted(world_.timeout());
}

std::vector<int> Wait::overdue(const std::vector<int>& absent) const {
  std::vector<int> causes;
  std::copy_if(absent.begin(), absent.end(), std::back_inserter(causes),
               [this](int rank) { return !world_.waits_itself(rank); });
  const bool time_is_over = has_lasted(world_.timeout() + collective::kTimeToSpeak);
  return causes.empty() && time_is_over ? absent : causes;
}

}  // namespace zero3::process
