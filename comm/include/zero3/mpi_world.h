#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <zero3/communicator.h>
#include <zero3/launch.h>

namespace zero3 {

/// The library that was compiled in, "Open MPI v4.1.4"; empty: none. At any time, from any thread.
[[nodiscard]] std::string mpi_library();

struct MpiOptions {
  /// How long a rank waits for the others in one operation.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  /// Gets this rank's one line about a failure of the world, on a thread of the communicator's own.
  /// Default: "zero3: [rank R] …" on standard error.
  std::function<void(std::string_view)> report = nullptr;
};

/// The ranks that a launcher of Open MPI started, all on one machine: processes that read each
/// other's memory in place, so their devices are made with DeviceOptions::shared. For streams of
/// CPU devices. Once in the life of a process.
///
/// Collective. All calls of MPI, MPI_Init and MPI_Finalize among them, are made by one thread,
/// which lives until the last communicator split from this one is destroyed. It looks after the
/// others ten times a second. Once the world has failed (see Communicator; a rank that died or
/// stopped is a failure too) it reports, leaves the others half a second to do the same, and ends
/// the process by MPI_Abort with status 1; the destructor of the last communicator waits for that.
///
/// Throws UsageError where MPI was not compiled in, is in use already, gives another rank or world
/// size than `launch` says, or where ranks are on several machines; CommError where processes
/// cannot map each other's memory.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi_communicator(const Launch& launch,
                                                                  const MpiOptions& options = {});

}  // namespace zero3
