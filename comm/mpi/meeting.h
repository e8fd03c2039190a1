#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <zero3/launch.h>
#include <zero3/mpi_world.h>
#include "process/board.h"

namespace zero3::mpi {

/// What a rank knows once all have met.
struct Meeting {
  int rank = 0, ranks = 1;
  LocalPlace local;
  /// That of all ranks which are not far.
  std::unique_ptr<process::Board> board;
  /// By rank: is reached by messages.
  std::vector<bool> far;
  /// By rank: the process, where this one can see it; 0 elsewhere.
  std::vector<std::int32_t> processes;
  /// Why ranks of one machine are far from each other though nobody asked for that; empty for all
  /// but the first of them.
  std::string warning;
};
/// Collective, after MPI_Init. Throws, then on every rank and with the same words, UsageError where
/// MPI and the launch disagree or ranks are of different builds, CommError where there is no memory
/// to share.
[[nodiscard]] Meeting meet(const Launch& launch, MpiPath path);

}  // namespace zero3::mpi
