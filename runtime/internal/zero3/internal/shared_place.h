#pragma once

#include <cstdint>
#include <optional>

namespace zero3::internal {

/// Where memory of a CPU device lies, for other processes of the machine: they open
/// /proc/PID/fd/DESCRIPTOR and map it.
struct SharedPlace {
  /// Names the file in this process, for good; never 0.
  std::uint32_t file = 0;
  int descriptor = -1;
  std::int64_t file_bytes = 0;
  std::int64_t offset = 0;
};

/// Of an address at which tasks find a view (native_data); none where the device is neither
/// simulated nor shared. Thread-safe.
[[nodiscard]] std::optional<SharedPlace> shared_place(const void* native);

}  // namespace zero3::internal
