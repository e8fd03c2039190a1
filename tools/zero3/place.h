#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include <zero3/communicator.h>
#include <zero3/device.h>
#include <zero3/env.h>
#include <zero3/error.h>
#include <zero3/launch.h>
#include <zero3/mpi_world.h>
#include <zero3/trace.h>
#include <zero3/trainer/run_plan.h>

namespace CLI {
class App;
}  // namespace CLI

namespace zero3::program {

enum class CommChoice : std::uint8_t { kAuto, kSelf, kLocal, kMpi, kNccl };

/// What the flags say about where ranks run.
struct PlaceFlags {
  DeviceKind device = DeviceKind::kCpu;
  /// Of a rank's compute stream; 0: cores / ranks of this process.
  int threads = 0;
  CommChoice comm = CommChoice::kAuto;
  /// 0: not given.
  int ranks = 0;
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  MpiPath path = MpiPath::kAuto;
};
/// --device --threads.
void add_device_flags(CLI::App& app, PlaceFlags& flags);
/// Those, and --comm --ranks --comm-timeout --comm-path.
void add_place_flags(CLI::App& app, PlaceFlags& flags);

/// Where ranks run, after flags and environment have been reconciled.
struct Place {
  trainer::RunPlace run;
  std::chrono::milliseconds timeout{0};
  MpiPath path = MpiPath::kAuto;
  /// Set: this process is one of the ranks. Not set: all of them run in it.
  std::optional<Launch> launch = std::nullopt;
  /// DeviceOptions.
  Bytes host_link{0};
  /// A launcher carries this process's output to wherever it goes.
  bool behind_launcher = false;

  /// Whether this process speaks for the run: prints, and writes the metrics.
  [[nodiscard]] bool reports() const { return !launch || launch->rank == 0; }
};
/// Throws UsageError for a backend that this version does not have, and for contradictions.
[[nodiscard]] Place resolve_place(const PlaceFlags& flags, const Environment& environment);
/// As resolve_place, for a run that is only planned: nothing about the environment matters.
[[nodiscard]] Place planned_place(const PlaceFlags& flags);

/// A rank failed; says which.
class RankFailure : public Error {
 public:
  RankFailure(int rank, std::string_view reason) : Error(concat("[rank ", rank, "] ", reason)) {}
};

struct RankResources {
  /// Of each rank's device.
  Bytes memory_limit{INT64_MAX};
  /// Gets the spans of all ranks; may be null.
  Trace* trace = nullptr;
};
/// Runs `rank_main` on every rank of the place that is in this process, each with a device of its
/// own. Throws RankFailure for the rank that failed first, once all have ended; where ranks are
/// processes, a failure ends this one with a line of its own (mpi_world.h). A rank whose streams
/// may wait for others aborts its communicator before it unwinds them (trainer::run_or_abort).
void run_ranks(const Place& place, const RankResources& resources,
               const std::function<void(Device&, Communicator&)>& rank_main);

}  // namespace zero3::program
