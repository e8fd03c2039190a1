#include <zero3/error.h>
#include <zero3/mpi_world.h>

namespace zero3 {

std::string mpi_library() {
  return {};
}

LocalPlace mpi_local_place() {
  return {};
}

std::unique_ptr<Communicator> make_mpi_communicator(const Launch&, const MpiOptions&) {
  throw UsageError(
      "this zero3 was built without MPI; install libopenmpi-dev and configure it again with "
      "-DZERO3_MPI=ON");
}

}  // namespace zero3
