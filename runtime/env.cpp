#include <zero3/env.h>

#include <cstdlib>

namespace zero3 {

Environment read_environment() {
  Environment environment;
  for (const char* name : {"RANK",
                           "WORLD_SIZE",
                           "LOCAL_RANK",
                           "LOCAL_WORLD_SIZE",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK",
                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                           "PMI_RANK",
                           "PMI_SIZE",
                           "SLURM_PROCID",
                           "SLURM_NTASKS",
                           "SLURM_LOCALID",
                           "SLURM_STEP_ID",
                           "SLURM_STEP_NUM_TASKS",
                           "MPI_LOCALRANKID",
                           "PMIX_NAMESPACE",
                           "ZERO3_SIM_LINK",
                           "ZERO3_LOG"}) {
    if (const char* value = std::getenv(name)) environment.emplace(name, value);
  }
  return environment;
}

}  // namespace zero3
