#include "mpi/mpi_thread.h"

#include <mpi.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <zero3/error.h>

namespace zero3 {
namespace mpi {
namespace {

/// A peer that has died is reported within two of these.
constexpr std::chrono::milliseconds kRound{100};
/// For the lines of the other ranks, before MPI_Abort ends them.
constexpr std::chrono::milliseconds kGrace{500};

struct Size {
  int world = 1, node = 1;
};

Size sizes() {
  Size size;
  MPI_Comm_size(MPI_COMM_WORLD, &size.world);
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_size(node, &size.node);
  MPI_Comm_free(&node);
  int smallest = 0;
  MPI_Allreduce(&size.node, &smallest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  size.node = smallest;
  return size;
}

/// Whether it holds on every rank. Collective: whoever throws must not leave others waiting in MPI.
bool holds_everywhere(bool here) {
  const int own = here ? 1 : 0;
  int all = 0;
  MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return all == 1;
}

/// Throws UsageError on every rank if MPI and the launch disagree on one.
void check_places(const Launch& launch, int rank, const Size& size) {
  std::string error;
  try {
    check_launch_matches(launch, size.world);
    ZERO3_CHECK(launch.rank == rank, "the launch (by ", name_of(launch.by), ") says rank ",
                launch.rank, ", MPI says rank ", rank,
                "; unset the variables of the launcher that did not start this process");
    ZERO3_CHECK(size.node == size.world, "the ", size.world,
                " ranks are on several machines; this version connects those of one");
  } catch (const UsageError& failure) {
    error = failure.what();
  }
  if (holds_everywhere(error.empty())) return;
  throw UsageError(error.empty() ? "another rank's launch contradicts MPI; see its error" : error);
}

/// Rank 0's board, mapped by all. Throws CommError on every rank if one cannot.
std::unique_ptr<process::Board> meet_at_board(int rank, int ranks) {
  std::array<char, 64> path = {};
  std::unique_ptr<process::Board> board;
  std::string error;
  const auto attempt = [&](const auto& make) {
    try {
      board = make();
    } catch (const CommError& failure) {
      error = failure.what();
    }
  };
  if (rank == 0) {
    attempt([&] { return std::make_unique<process::Board>(ranks); });
    if (board) std::strncpy(path.data(), board->path().c_str(), path.size() - 1);
  }
  MPI_Bcast(path.data(), path.size(), MPI_CHAR, 0, MPI_COMM_WORLD);
  if (rank != 0 && path[0] != '\0') {
    attempt([&] { return std::make_unique<process::Board>(path.data(), ranks); });
  }
  if (!holds_everywhere(board != nullptr)) {
    throw CommError(
        concat(error.empty() ? "another rank cannot map memory shared between ranks" : error,
               "; the processes of this machine must see each other's /proc/PID/fd"));
  }
  return board;
}

void write_to_standard_error(int rank, std::string_view message) {
  const std::string line = concat("zero3: [rank ", rank, "] ", message, '\n');
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

MpiThread::MpiThread(const Launch& launch, MpiOptions options) : options_(std::move(options)) {
  std::promise<void> ready;
  thread_ = std::thread([&, this] { run(launch, ready); });
  try {
    ready.get_future().get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

MpiThread::~MpiThread() {
  ending_ = true;
  thread_.join();
}

void MpiThread::run(const Launch& launch, std::promise<void>& ready) {
  try {
    meet(launch);
  } catch (...) {
    ready.set_exception(std::current_exception());
    return;
  }
  ready.set_value();
  look_after();
  world_.reset();
  MPI_Finalize();
}

void MpiThread::meet(const Launch& launch) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  ZERO3_CHECK(initialized == 0,
              "MPI is in use in this process already; zero3 calls MPI_Init by itself, once");
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  try {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    const Size size = sizes();
    check_places(launch, rank_, size);
    world_ = std::make_unique<process::ProcessWorld>(meet_at_board(rank_, size.world), rank_,
                                                     options_.timeout);
    // No rank looks for another's process before it is on the board.
    MPI_Barrier(MPI_COMM_WORLD);
  } catch (...) {
    MPI_Finalize();
    throw;
  }
}

void MpiThread::look_after() {
  while (true) {
    world_->check_processes();
    if (world_->board().failed()) end_process();
    if (ending_) return;
    std::this_thread::sleep_for(kRound);
  }
}

void MpiThread::end_process() {
  const std::string message = world_->board().failure()->message;
  if (options_.report) {
    options_.report(message);
  } else {
    write_to_standard_error(rank_, message);
  }
  std::this_thread::sleep_for(kGrace);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

}  // namespace mpi

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text = {};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find(','));
}

std::unique_ptr<Communicator> make_mpi_communicator(const Launch& launch,
                                                    const MpiOptions& options) {
  auto thread = std::make_shared<mpi::MpiThread>(launch, options);
  process::ProcessWorld* world = &thread->world();
  return process::make_process_communicator(
      std::shared_ptr<process::ProcessWorld>(std::move(thread), world));
}

}  // namespace zero3
