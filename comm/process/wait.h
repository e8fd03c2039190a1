#pragma once

#include <chrono>
#include <vector>

#include "process/process_world.h"

namespace zero3::process {

/// One wait of this rank for others, from its construction on.
///
/// Where one rank stands still, those that wait for it are waited for by others, and all run out of
/// time together. So a rank tells the others when it has waited for half of the timeout, and who
/// runs out of time names only ranks that do not wait themselves.
class Wait {
 public:
  explicit Wait(ProcessWorld& world) : world_(world) {}
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  /// Whether the timeout has passed; to be asked often enough for the half of it to be noticed.
  [[nodiscard]] bool is_late();
  /// Once it is late: those of the `absent` (ranks of the world) that are to be named. Empty where
  /// all of them wait themselves and may yet say for whom; a moment later it is all of them.
  [[nodiscard]] std::vector<int> overdue(const std::vector<int>& absent) const;

 private:
  [[nodiscard]] bool has_lasted(std::chrono::milliseconds time) const;

  ProcessWorld& world_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  bool told_ = false;
};

}  // namespace zero3::process
