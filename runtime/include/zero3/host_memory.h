#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include <zero3/units.h>

namespace zero3 {

/// What a process may still take of the host's memory, and what says so.
struct HostBudget {
  Bytes bytes{INT64_MAX};
  /// "MemAvailable", "the memory limit of cgroup /jobs/7", "the memlock limit (ulimit -l)".
  std::string bound;
};
/// The tightest of: available memory, every cgroup (versions 1 and 2) around this process with what
/// it uses and cannot drop taken off, and, for memory that is to be `locked`, RLIMIT_MEMLOCK where
/// this process does not run as root. `root` is where /proc and /sys are looked for. What cannot be
/// read sets no bound. Never throws.
[[nodiscard]] HostBudget host_budget(bool locked, const std::filesystem::path& root = "/");

/// A block of host memory of exactly its size (to the page), there from the beginning: later use
/// meets no shortage. Movable, not copyable.
class HostSlab {
 public:
  HostSlab() = default;
  /// `locked`: never swapped out. Throws OutOfMemoryError.
  HostSlab(Bytes size, bool locked);
  HostSlab(const HostSlab&) = delete;
  HostSlab& operator=(const HostSlab&) = delete;
  HostSlab(HostSlab&& other) noexcept;
  HostSlab& operator=(HostSlab&& other) noexcept;
  ~HostSlab();

  /// Page-aligned; null where size() is 0.
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] Bytes size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  Bytes size_;
};

}  // namespace zero3
