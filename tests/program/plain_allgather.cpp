// How fast MPI_Allgather itself is: what `zero3 bench comm --comm-path messages` stands beside.
//   mpirun -n N plain_allgather
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (const int elements : {1 << 12, 1 << 16, 1 << 20, 1 << 24}) {
    const int part = elements / ranks;
    const std::vector<float> shard(static_cast<std::size_t>(part), 1.0F);
    std::vector<float> full(static_cast<std::size_t>(part * ranks));
    double best = 1e9;
    for (int call = 0; call < 21; ++call) {
      const double begin = MPI_Wtime();
      MPI_Allgather(shard.data(), part, MPI_FLOAT, full.data(), part, MPI_FLOAT, MPI_COMM_WORLD);
      best = std::min(best, MPI_Wtime() - begin);
    }
    if (rank == 0) std::printf("%d elements: %.1f microseconds\n", elements, best * 1e6);
  }
  MPI_Finalize();
}
