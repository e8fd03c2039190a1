#include "place.h"

#include <unistd.h>

#include <algorithm>
#include <exception>

#include <zero3/launch.h>
#include <zero3/local_world.h>
#include <zero3/mpi_world.h>
#include "flags.h"

namespace zero3::program {
namespace {

/// More would only exhaust threads.
constexpr int kMaxRanks = 1024;
constexpr int kMaxThreads = 1024;

int ranks_here(const PlaceFlags& flags) {
  switch (flags.comm) {
    case CommChoice::kSelf:
      ZERO3_CHECK(flags.ranks <= 1, "--comm self is a group of one, not of --ranks ", flags.ranks,
                  "; choose --comm local");
      return 1;
    case CommChoice::kLocal:
      ZERO3_CHECK(flags.ranks >= 1, "--comm local needs the number of ranks; add --ranks N");
      return flags.ranks;
    case CommChoice::kNccl:
      throw UsageError(
          "--comm nccl: this version has no NCCL backend; choose --comm local --ranks N");
    case CommChoice::kMpi:
    case CommChoice::kAuto:
      break;
  }
  return std::max(1, flags.ranks);
}

Place place_of(const PlaceFlags& flags, int ranks, int ranks_on_cores) {
  const int threads =
      flags.threads > 0 ? flags.threads : std::max(1, available_cores() / ranks_on_cores);
  return {.run = {.ranks = ranks, .device = flags.device, .threads = threads},
          .timeout = flags.timeout,
          .path = flags.path};
}

bool by_mpi_launcher(const Launch& launch) {
  return launch.by == Launch::By::kOpenMpi || launch.by == Launch::By::kPmi ||
         launch.by == Launch::By::kSlurm;
}

/// Whether the ranks are processes that MPI connects.
bool uses_mpi(const PlaceFlags& flags, const Launch& launch, const Environment& environment) {
  if (flags.comm == CommChoice::kMpi) return true;
  if (flags.comm != CommChoice::kAuto || launch.world_size == 1) return false;
  // Some scripts export RANK and WORLD_SIZE beside what mpirun sets.
  return by_mpi_launcher(launch) || environment.contains("PMIX_NAMESPACE");
}

/// Ranks that share the cores which this process may use.
int ranks_on_these_cores(const Launch& launch, const Environment& environment) {
  const auto local_size = environment.find("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (local_size == environment.end()) return launch.world_size;
  // A launcher that binds its ranks to cores has divided them already.
  if (available_cores() < sysconf(_SC_NPROCESSORS_ONLN)) return 1;
  return static_cast<int>(parse_count(local_size->second, 1, kMaxRanks));
}

Place place_among_processes(const PlaceFlags& flags, const Launch& launch,
                            const Environment& environment) {
  // Without it MPI_Init ends the process with pages of its own words.
  ZERO3_CHECK(environment.contains("PMIX_NAMESPACE"),
              flags.comm == CommChoice::kMpi ? "--comm mpi" : name_of(launch.by), " with ",
              launch.world_size,
              " ranks, but no launcher of Open MPI started this process; start it by mpirun -n "
              "N, or by srun --mpi=pmix, or unset the launcher's variables");
  ZERO3_CHECK(!mpi_library().empty(), "started by ", name_of(launch.by), " with ",
              launch.world_size,
              " ranks, but this zero3 was built without MPI; install libopenmpi-dev and build it "
              "again, or start one process with --comm local --ranks ",
              launch.world_size);
  ZERO3_CHECK(flags.ranks == 0 || flags.ranks == launch.world_size, "--ranks ", flags.ranks,
              " but the launch (by ", name_of(launch.by), ") has ", launch.world_size,
              "; leave --ranks out");
  Place place = place_of(flags, launch.world_size, ranks_on_these_cores(launch, environment));
  place.launch = launch;
  place.behind_launcher = true;
  return place;
}

void refuse_other_processes(const Launch& launch, int ranks) {
  if (launch.world_size == 1) return;
  // WORLD_SIZE says that other processes exist, and nothing here can reach them.
  ZERO3_CHECK(ranks == 1, "--ranks ", ranks,
              " run in this process, but the environment says that it is rank ", launch.rank,
              " of WORLD_SIZE=", launch.world_size, "; unset WORLD_SIZE and RANK");
  check_launch_matches(launch, 1);
}

}  // namespace

void add_device_flags(CLI::App& app, PlaceFlags& flags) {
  begin_group(app, "Ranks and devices");
  add_value(app, {"--device", "cpu|cpu:sim", "what computes; cpu:sim is a simulated accelerator"},
            "cpu", [&flags](const std::string& text) { flags.device = parse_device_kind(text); });
  add_value(app, {"--threads", "T", "threads of a rank's compute stream"}, "cores / ranks",
            [&flags](const std::string& text) {
              flags.threads = static_cast<int>(parse_count(text, 1, kMaxThreads));
            });
}

void add_place_flags(CLI::App& app, PlaceFlags& flags) {
  add_device_flags(app, flags);
  add_choice(app, {"--comm", "", "how ranks talk; local runs them as threads of this process"},
             flags.comm,
             {{"auto", CommChoice::kAuto},
              {"self", CommChoice::kSelf},
              {"local", CommChoice::kLocal},
              {"mpi", CommChoice::kMpi},
              {"nccl", CommChoice::kNccl}});
  add_value(app, {"--ranks", "N", "ranks of --comm local"}, "1", [&flags](const std::string& text) {
    flags.ranks = static_cast<int>(parse_count(text, 1, kMaxRanks));
  });
  add_value(app, {"--comm-timeout", "T", "how long to wait for a rank"}, "300s",
            [&flags](const std::string& text) {
              flags.timeout = parse_duration(text);
              ZERO3_CHECK(flags.timeout.count() > 0, "'", text, "' is no time to wait");
            });
  add_choice(app,
             {"--comm-path", "",
              "how mpi's ranks of one machine reach each other: in memory that they share, or, as "
              "those of different machines, by messages"},
             flags.path, {{"auto", MpiPath::kAuto}, {"messages", MpiPath::kMessages}});
}

Place resolve_place(const PlaceFlags& flags, const Environment& environment) {
  const int ranks = ranks_here(flags);
  const Launch launch = resolve_launch(environment);
  Place place;
  if (uses_mpi(flags, launch, environment)) {
    place = place_among_processes(flags, launch, environment);
  } else {
    refuse_other_processes(launch, ranks);
    place = place_of(flags, ranks, ranks);
    place.behind_launcher = by_mpi_launcher(launch);
  }
  const auto link = environment.find("ZERO3_SIM_LINK");
  if (link != environment.end()) place.host_link = Bytes(parse_size(link->second));
  return place;
}

Place planned_place(const PlaceFlags& flags) {
  return place_of(flags, ranks_here(flags), ranks_here(flags));
}

void run_ranks(const Place& place, const RankResources& resources,
               const std::function<void(Device&, Communicator&)>& rank_main) {
  const auto run_rank = [&](Communicator& communicator) {
    try {
      const std::unique_ptr<Device> device = make_device({.kind = place.run.device,
                                                          .threads = place.run.threads,
                                                          .memory_limit = resources.memory_limit,
                                                          .host_link = place.host_link,
                                                          .shared = place.launch.has_value(),
                                                          .trace = resources.trace,
                                                          .rank = communicator.rank()});
      rank_main(*device, communicator);
    } catch (const std::exception& error) {
      throw RankFailure(communicator.rank(), error.what());
    }
  };
  if (place.launch) {
    auto communicator =
        make_mpi_communicator(*place.launch, {.timeout = place.timeout, .path = place.path});
    try {
      run_rank(*communicator);
    } catch (const RankFailure& failure) {
      communicator->abort(failure.what());
      // Says what failed, and ends the process.
      communicator.reset();
      throw;
    }
  } else if (place.run.ranks == 1) {
    run_rank(*make_self_communicator());
  } else {
    LocalWorld(place.run.ranks, place.timeout).run(run_rank);
  }
}

}  // namespace zero3::program
