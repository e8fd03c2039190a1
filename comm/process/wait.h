#pragma once

#include <chrono>
#include <vector>

#include "process/process_world.h"

namespace zero3::process {

/// One wait of this rank for others, from its construction on.
///
/// It tells the others when it has lasted for half of the timeout, so that they do not take this
/// rank for the cause (kTimeToSpeak).
class Wait {
 public:
  explicit Wait(ProcessWorld& world) : world_(world) {}
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  /// Whether the timeout has passed; to be asked often enough for the half of it to be noticed.
  [[nodiscard]] bool is_late();
  /// Once it is late: those of the `absent` (ranks of the world) that are to be named; empty while
  /// others are to speak.
  [[nodiscard]] std::vector<int> overdue(const std::vector<int>& absent) const;

 private:
  [[nodiscard]] bool has_lasted(std::chrono::milliseconds time) const;

  ProcessWorld& world_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  bool told_ = false;
};

}  // namespace zero3::process
