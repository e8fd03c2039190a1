#include "mpi/meeting.h"

#include <mpi.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <zero3/error.h>
#include "failure.h"
#include "process/messages.h"

namespace zero3::mpi {
namespace {

using process::Board;

int size_of_group(MPI_Comm group) {
  int size = 0;
  MPI_Comm_size(group, &size);
  return size;
}

int rank_in(MPI_Comm group) {
  int rank = 0;
  MPI_Comm_rank(group, &rank);
  return rank;
}

/// Every rank's value, by rank. T travels as bytes.
template <class T>
std::vector<T> gather(const T& own, MPI_Comm group) {
  std::vector<T> all(static_cast<std::size_t>(size_of_group(group)));
  MPI_Allgather(&own, sizeof(T), MPI_BYTE, all.data(), sizeof(T), MPI_BYTE, group);
  return all;
}

/// An error, or none, as ranks tell it each other.
struct ErrorText {
  explicit ErrorText(std::string_view message = {}) {
    std::memcpy(text.data(), message.data(), std::min(message.size(), text.size() - 1));
  }
  [[nodiscard]] bool none() const { return text[0] == '\0'; }
  std::array<char, 512> text = {};
};

/// The first rank's error that has one; empty: none has. Collective: whoever throws must not leave
/// others waiting in MPI.
std::string first_error(const std::string& own, MPI_Comm group) {
  for (const ErrorText& error : gather(ErrorText(own), group)) {
    if (!error.none()) return error.text.data();
  }
  return {};
}

void check_places(const Launch& launch, int rank, int ranks) {
  std::string error;
  try {
    check_launch_matches(launch, ranks);
    ZERO3_CHECK(launch.rank == rank, "the launch (by ", name_of(launch.by), ") says rank ",
                launch.rank, ", MPI says rank ", rank,
                "; unset the variables of the launcher that did not start this process");
  } catch (const UsageError& failure) {
    error = concat("rank ", rank, ": ", failure.what());
  }
  // In full on every rank: mpirun ends all at the first's exit, before others may have said theirs.
  error = first_error(error, MPI_COMM_WORLD);
  if (!error.empty()) throw UsageError(error);
}

/// Ranks of different builds would misread each other.
void check_builds() {
  struct Build {
    std::array<char, 32> version = {};
    std::uint64_t letter_bytes = sizeof(process::Letter);
    bool operator==(const Build&) const = default;
  } own;
  std::strncpy(own.version.data(), ZERO3_VERSION, own.version.size() - 1);
  const std::vector<Build> builds = gather(own, MPI_COMM_WORLD);
  for (std::size_t rank = 1; rank < builds.size(); ++rank) {
    ZERO3_CHECK(builds[rank] == builds[0], "rank 0 runs zero3 ", builds[0].version.data(),
                ", rank ", rank, " zero3 ", builds[rank].version.data(),
                ", or one built otherwise; install the same build on every machine");
  }
}

/// Ranks of this machine.
class Machine {
 public:
  explicit Machine(int ranks) : ranks_(ranks) {
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &group_);
    members_ = gather(rank_in(MPI_COMM_WORLD), group_);
  }
  ~Machine() { MPI_Comm_free(&group_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  [[nodiscard]] const std::vector<int>& members() const { return members_; }
  [[nodiscard]] bool is_first() const { return rank_in(group_) == 0; }
  [[nodiscard]] LocalPlace local_place() const {
    return {.rank = rank_in(group_), .ranks = size_of_group(group_)};
  }

  /// One board for all of them, or null and why not.
  std::unique_ptr<Board> share_board(std::string& error) const {
    std::unique_ptr<Board> own;
    if (is_first()) error = attempt([&] { own = std::make_unique<Board>(ranks_); });
    const Address first = gather(address_of(own.get()), group_)[0];
    if (!is_first()) error = attempt([&] { own = open(first); });
    // That one can read another's files does not mean the reverse.
    for (const Address& address : gather(address_of(own.get()), group_)) {
      if (error.empty()) error = attempt([&] { (void)open(address); });
    }
    error = first_error(error, group_);
    if (!error.empty()) own.reset();
    return own;
  }

  /// By rank of the world: processes that this one sees by their number.
  [[nodiscard]] std::vector<std::int32_t> processes() const {
    struct Process {
      std::int32_t number;
      std::uint64_t space;
    };
    struct stat space = {};
    const bool known = stat("/proc/self/ns/pid", &space) == 0;
    const Process own = {.number = getpid(), .space = known ? space.st_ino : 0};
    std::vector<std::int32_t> numbers(static_cast<std::size_t>(ranks_), 0);
    const std::vector<Process> all = gather(own, group_);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!known || all[i].space != own.space) continue;
      numbers[static_cast<std::size_t>(members_[i])] = all[i].number;
    }
    return numbers;
  }

 private:
  struct Address {
    std::array<char, 64> path = {};
    std::uint64_t nonce = 0;
  };
  static Address address_of(const Board* board) {
    Address address;
    if (board == nullptr) return address;
    std::strncpy(address.path.data(), board->path().c_str(), address.path.size() - 1);
    address.nonce = board->nonce();
    return address;
  }
  [[nodiscard]] std::unique_ptr<Board> open(const Address& address) const {
    auto board = std::make_unique<Board>(std::string(address.path.data()), ranks_);
    if (board->nonce() != address.nonce) {
      throw CommError(concat(address.path.data(), " is a file of another process here"));
    }
    return board;
  }
  /// The error, if there is one.
  template <class Action>
  static std::string attempt(const Action& action) {
    try {
      action();
      return {};
    } catch (const CommError& failure) {
      return failure.what();
    }
  }

  int ranks_;
  MPI_Comm group_ = MPI_COMM_NULL;
  std::vector<int> members_;
};

std::unique_ptr<Board> own_board(int ranks) {
  std::unique_ptr<Board> board;
  std::string error;
  try {
    board = std::make_unique<Board>(ranks);
  } catch (const CommError& failure) {
    error = failure.what();
  }
  error = first_error(error, MPI_COMM_WORLD);
  if (!error.empty()) throw CommError(error);
  return board;
}

}  // namespace

Meeting meet(const Launch& launch, MpiPath path) {
  Meeting meeting;
  meeting.rank = rank_in(MPI_COMM_WORLD);
  meeting.ranks = size_of_group(MPI_COMM_WORLD);
  check_places(launch, meeting.rank, meeting.ranks);
  check_builds();

  const Machine machine(meeting.ranks);
  meeting.local = machine.local_place();
  std::string error;
  if (path == MpiPath::kAuto) meeting.board = machine.share_board(error);
  if (!error.empty() && machine.is_first()) {
    meeting.warning = concat(collective::text_of_ranks(machine.members()),
                             " cannot read each other's memory (", error,
                             ") and send messages, which is slower; let their processes see each "
                             "other's /proc/PID/fd");
  }
  const int first_near = meeting.board ? machine.members()[0] : meeting.rank;
  std::unique_ptr<Board> own = own_board(meeting.ranks);
  if (!meeting.board) meeting.board = std::move(own);
  for (const int first : gather(first_near, MPI_COMM_WORLD)) {
    meeting.far.push_back(first != first_near);
  }
  meeting.processes = machine.processes();
  return meeting;
}

}  // namespace zero3::mpi
