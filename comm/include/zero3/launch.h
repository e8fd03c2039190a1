#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <zero3/env.h>

namespace zero3 {

/// Who this process is among those that were started together.
struct Launch {
  enum class By : std::uint8_t { kNobody, kArguments, kEnvironment, kOpenMpi, kPmi, kSlurm };
  /// Who gave the world size (or the rank, with kArguments).
  By by = By::kNobody;
  int rank = 0, world_size = 1, local_rank = 0;
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
};
/// "nobody", "arguments", "RANK and WORLD_SIZE", "Open MPI", …
[[nodiscard]] std::string_view name_of(Launch::By by);

/// What was given explicitly; wins over the environment.
struct LaunchArguments {
  std::optional<int> rank = std::nullopt, world_size = std::nullopt, local_rank = std::nullopt;
};

/// Explicit arguments, then RANK/WORLD_SIZE/LOCAL_RANK/MASTER_ADDR/MASTER_PORT (each with its
/// default: 0, 1, 0, 127.0.0.1, 29500), then OMPI_COMM_WORLD_*, PMI_*, SLURM_*, then a single
/// process. Pure: no socket is opened, the environment is not changed.
///
/// Throws UsageError that names the variable and its value: not a decimal number, a rank or local
/// rank outside the world, a port outside 1…65535, a rank without a world size, a world of several
/// without a rank, and sources that contradict each other. RANK/WORLD_SIZE, OMPI_* and PMI_* speak
/// of the same processes, so what two of them give must agree, unless an argument settles it.
///
/// SLURM_* may speak of other processes: under `srun mpirun` or `srun torchrun` of the agents. So
/// it is only asked for what none of the others gives, and only in a step that srun started: where
/// SLURM_STEP_ID is the number of an ordinary step. A batch script's own process has SLURM_NTASKS
/// and SLURM_PROCID=0 too, and is a single process. Rank is SLURM_PROCID, world size
/// SLURM_STEP_NUM_TASKS or else SLURM_NTASKS, local rank SLURM_LOCALID.
[[nodiscard]] Launch resolve_launch(const Environment& environment,
                                    const LaunchArguments& arguments = {});

/// Throws UsageError unless the backend that was chosen has as many ranks as the launch says
/// (WORLD_SIZE=2 with a group of one would train two independent models).
void check_launch_matches(const Launch& launch, int group_size);

}  // namespace zero3
