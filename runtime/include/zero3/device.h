#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <zero3/memory.h>
#include <zero3/memory_resources.h>
#include <zero3/stream.h>
#include <zero3/units.h>

namespace zero3 {

class Trace;
class BlockTable;

enum class DeviceKind : std::uint8_t { kCpu, kCpuSim, kCuda };
/// "cpu", "cpu:sim", "cuda".
[[nodiscard]] std::string_view name_of(DeviceKind kind);
/// Throws UsageError that lists the names.
[[nodiscard]] DeviceKind parse_device_kind(std::string_view name);

struct StreamOptions {
  std::string name = "stream";
  /// CPU threads that one operation of this stream may use. Only compute streams take more than
  /// one.
  int threads = 1;
};

/// Where bytes live and in what order: makes streams, and owns the memory that buffers come from.
///
/// Memory is stats(limit(pool(backend))). A device outlives its streams, buffers and views.
/// Thread-safe, except that destruction requires that nothing of it is in use.
class Device {
 public:
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] virtual DeviceKind kind() const = 0;
  [[nodiscard]] virtual int ordinal() const { return 0; }
  /// The host may read and write this device's memory directly (in stream order). True for kCpu
  /// alone.
  [[nodiscard]] bool host_accessible() const { return kind() == DeviceKind::kCpu; }
  /// CPU threads for a compute stream.
  [[nodiscard]] virtual int threads() const = 0;
  [[nodiscard]] virtual std::unique_ptr<Stream> make_stream(StreamOptions options) = 0;

  /// Where Buffer takes its memory from.
  [[nodiscard]] virtual MemoryResource& memory() = 0;
  [[nodiscard]] virtual StatsResource& stats() = 0;
  [[nodiscard]] virtual LimitResource& limit() = 0;
  [[nodiscard]] virtual PoolResource& pool() = 0;
  /// Generations of live buffers, by which views notice that their buffer is gone.
  [[nodiscard]] virtual BlockTable& blocks() = 0;

 protected:
  Device() = default;
};

struct DeviceOptions {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;
  /// CPU threads of compute streams; 0: the cores of this process's affinity mask.
  int threads = 0;
  /// Refuse to have more than this in use.
  Bytes memory_limit{INT64_MAX};
  /// Size of a simulated device's memory.
  Bytes capacity{std::int64_t{1} << 34};
  /// Bytes a second at which a simulated device's copies from and to the host go, each on its own:
  /// they sleep that time, and copy at its end. 0: as fast as memory.
  Bytes host_link{0};
  /// Memory of kCpu comes from a file that the processes of this machine can map, so that their
  /// communicators read it in place (mpi_world.h). kCpuSim's always does.
  bool shared = false;
  /// Fill blocks with NaN patterns when they are allocated and returned: a use out of order shows.
  bool poison = false;
  /// Spans of this device's operations go here, one row per stream. May be null; outlives the
  /// device.
  Trace* trace = nullptr;
  /// Rank shown in traces.
  int rank = 0;
};

/// A device whose streams each have a thread of their own. Throws DeviceError when the kind is not
/// built or not present, and says what to install or to choose.
[[nodiscard]] std::unique_ptr<Device> make_device(const DeviceOptions& options);

/// Cores in this process's affinity mask.
[[nodiscard]] int available_cores();

}  // namespace zero3
