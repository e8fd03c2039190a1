#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <zero3/communicator.h>
#include <zero3/launch.h>

namespace zero3 {

/// The library that was compiled in, "Open MPI v4.1.4"; empty: none. At any time, from any thread.
[[nodiscard]] std::string mpi_library();

/// Which of the ranks of its machine a process is.
struct LocalPlace {
  int rank = 0, ranks = 1;
};
/// This process's, by which ranks share memory and not by host names; in order of the ranks of the
/// world. Known once make_mpi_communicator has returned; 0 of 1 before.
[[nodiscard]] LocalPlace mpi_local_place();

/// How ranks of one machine reach each other.
enum class MpiPath : std::uint8_t {
  kAuto,     ///< in place where their memory can be mapped, else by messages, with a warning
  kMessages  ///< as if each were a machine of its own
};

struct MpiOptions {
  /// How long a rank waits for the others in one operation; 0.4 s longer where all that are absent
  /// wait for others themselves.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  MpiPath path = MpiPath::kAuto;
  /// Gets this rank's one line about a failure of the world, on a thread of the communicator's own.
  /// Default: "zero3: [rank R] …" on standard error.
  std::function<void(std::string_view)> report = nullptr;
  /// The same for "warning: …".
  std::function<void(std::string_view)> warn = nullptr;
};

/// The ranks that a launcher of Open MPI started. Those of one machine are processes that read each
/// other's memory in place, so their devices are made with DeviceOptions::shared; those of
/// different machines send messages. For streams of CPU devices. Once in the life of a process.
///
/// Collective. All calls of MPI, MPI_Init and MPI_Finalize among them, are made by one thread,
/// which lives until the last communicator split from this one is destroyed. It looks after the
/// others ten times a second. Once the world has failed (see Communicator; a rank of this machine
/// that died is a failure too) it reports, leaves the others half a second to do the same, and ends
/// the process by MPI_Abort with status 1. The destructor of the last communicator waits for that;
/// where an exception unwinds it, it returns before, so that a handler can tell what happened.
///
/// Throws UsageError where MPI was not compiled in, is in use already, gives another rank or world
/// size than `launch` says, or where ranks run different builds of zero3.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi_communicator(const Launch& launch,
                                                                  const MpiOptions& options = {});

}  // namespace zero3
