#pragma once

#include <map>
#include <string>

namespace zero3 {

/// Environment variables by name. Functions that depend on the environment take one, so tests make
/// their own.
using Environment = std::map<std::string, std::string>;

/// Copies the variables that zero3 knows out of the process's environment; the only place that
/// reads it. The environment is never modified. Known variables:
///   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT   launch
///   OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}                     launch by Open MPI
///   PMI_RANK PMI_SIZE MPI_LOCALRANKID                                     launch by MPICH
///   SLURM_{PROCID,NTASKS,LOCALID,STEP_ID,STEP_NUM_TASKS}                  launch by Slurm
///   PMIX_NAMESPACE                                                        set by mpirun and srun
///   ZERO3_SIM_LINK                         bytes a second between the host and a cpu:sim device
///   ZERO3_LOG                                                             error, warn, info, debug
[[nodiscard]] Environment read_environment();

}  // namespace zero3
