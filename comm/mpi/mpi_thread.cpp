#include "mpi/mpi_thread.h"

#include <mpi.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include <zero3/error.h>
#include "mpi/meeting.h"
#include "process/process_group.h"

namespace zero3 {
namespace mpi {
namespace {

/// A peer that has died is reported within two of these.
constexpr std::chrono::milliseconds kRound{100};
/// For the lines of the other ranks, before MPI_Abort ends them.
constexpr std::chrono::milliseconds kGrace{500};

/// Between two looks while the others end as well.
constexpr std::chrono::milliseconds kEndingRound{2};
/// For this rank to come to an operation that the failure keeps it in.
constexpr std::chrono::milliseconds kNextOperation{100};
/// For what this rank has to tell about a failure.
constexpr std::chrono::milliseconds kLastLetters{200};

/// Of the one world of this process.
LocalPlace g_local_place;

void write_to_standard_error(int rank, std::string_view message) {
  // In one piece: lines of several ranks meet there.
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

void MpiThread::end(MpiThread* thread) noexcept {
  thread->unwinding_ = std::uncaught_exceptions() > 0;
  thread->ending_ = true;
  if (thread->unwinding_ && thread->world_->board().failed()) {
    // The thread goes on with it, until it ends the process. The caller's handler runs after the
    // other ranks' lines, and the end of its process, for which a launcher ends all others at once,
    // after their handlers.
    std::this_thread::sleep_for(kGrace / 2);
    std::atexit([] { std::this_thread::sleep_for(kGrace); });
    thread->thread_.detach();
    return;
  }
  thread->thread_.join();
  delete thread;
}

void MpiThread::run(const Launch& launch, std::promise<void>& ready) {
  // The default of 50 microseconds would more than double a wait for a letter.
  prctl(PR_SET_TIMERSLACK, 1000UL);
  try {
    begin(launch);
  } catch (...) {
    ready.set_exception(std::current_exception());
    return;
  }
  ready.set_value();
  look_after();
  world_.reset();
  messages_.reset();
  MPI_Finalize();
}

void MpiThread::begin(const Launch& launch) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  ZERO3_CHECK(initialized == 0,
              "MPI is in use in this process already; zero3 calls MPI_Init by itself, once");
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  try {
    Meeting meeting = meet(launch, options_.path);
    rank_ = meeting.rank;
    g_local_place = meeting.local;
    const bool any_far =
        std::find(meeting.far.begin(), meeting.far.end(), true) != meeting.far.end();
    if (any_far) messages_ = std::make_unique<MpiMessages>();
    world_ = std::make_unique<process::ProcessWorld>(
        std::move(meeting.board), rank_, options_.timeout, std::move(meeting.far), messages_.get());
    world_->know_processes(meeting.processes);
    if (!meeting.warning.empty()) tell(options_.warn, concat("warning: ", meeting.warning));
    // No rank looks for another's process before it is on the board.
    MPI_Barrier(MPI_COMM_WORLD);
  } catch (...) {
    MPI_Finalize();
    throw;
  }
}

void MpiThread::carry() {
  if (!messages_) return;
  try {
    messages_->carry([this](const process::Letter& letter) { world_->receive(letter); });
  } catch (const CommError& error) {
    world_->fail({.message = concat("rank ", rank_, ": ", error.what()), .culprit = rank_});
  }
}

void MpiThread::look_after() {
  using Clock = std::chrono::steady_clock;
  auto next_round = Clock::now(), next_beat = next_round;
  bool left = false;
  while (true) {
    carry();
    if (Clock::now() >= next_round) {
      world_->check_processes();
      next_round = Clock::now() + kRound;
    }
    if (!left && Clock::now() >= next_beat) {
      world_->beat();
      next_beat = Clock::now() + process::ProcessWorld::kHeartbeat;
    }
    if (world_->board().failed()) end_process();
    if (ending_ && !left) {
      world_->leave();
      left = true;
    }
    if (left && world_->all_left() && (!messages_ || messages_->sent_all())) return;
    const auto longest = left ? kEndingRound : kRound;
    if (messages_) {
      messages_->pause(longest);
    } else {
      std::this_thread::sleep_for(longest);
    }
  }
}

void MpiThread::end_process() {
  if (messages_) {
    const auto deadline = std::chrono::steady_clock::now() + kLastLetters;
    while (!messages_->sent_all() && std::chrono::steady_clock::now() < deadline) carry();
    // From here on MPI touches no memory of the streams.
    messages_->stop();
  }
  const collective::Failure failure = *world_->board().failure();
  const auto deadline = std::chrono::steady_clock::now() + kNextOperation;
  while (!world_->knows_operation(failure) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kEndingRound);
  }
  tell(options_.report, world_->own_words(failure));
  std::this_thread::sleep_for(kGrace);
  if (unwinding_) std::this_thread::sleep_for(kGrace);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

void MpiThread::tell(const std::function<void(std::string_view)>& listener,
                     std::string_view message) const {
  if (listener) {
    listener(message);
  } else {
    write_to_standard_error(rank_, message);
  }
}

}  // namespace mpi

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text = {};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find(','));
}

LocalPlace mpi_local_place() {
  return mpi::g_local_place;
}

std::unique_ptr<Communicator> make_mpi_communicator(const Launch& launch,
                                                    const MpiOptions& options) {
  std::shared_ptr<mpi::MpiThread> thread(new mpi::MpiThread(launch, options), mpi::MpiThread::end);
  process::ProcessWorld* world = &thread->world();
  return process::make_process_communicator(
      std::shared_ptr<process::ProcessWorld>(std::move(thread), world));
}

}  // namespace zero3
