#include "process/process_world.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include <zero3/error.h>

namespace zero3::process {
namespace {

/// A beat may come late.
constexpr std::chrono::seconds kSilence = 3 * ProcessWorld::kHeartbeat;

bool is_stopped(int process) {
  std::ifstream file(concat("/proc/", process, "/stat"));
  std::string text;
  std::getline(file, text);
  // The state follows the name, which is in brackets and may hold any character.
  const std::size_t bracket = text.rfind(')');
  return bracket != std::string::npos && bracket + 2 < text.size() && text[bracket + 2] == 'T';
}

}  // namespace

ProcessWorld::ProcessWorld(std::unique_ptr<Board> board, int rank,
                           std::chrono::milliseconds timeout)
    : board_(std::move(board)),
      rank_(rank),
      timeout_(timeout),
      processes_(static_cast<std::size_t>(board_->ranks()), -1) {
  board_->process(rank).store(getpid());
}

ProcessWorld::ProcessWorld(std::unique_ptr<Board> board, int rank,
                           std::chrono::milliseconds timeout, std::vector<bool> far,
                           Messages* messages)
    : ProcessWorld(std::move(board), rank, timeout) {
  if (messages == nullptr) return;
  far_ = std::move(far);
  messages_ = messages;
  far_board_ = std::make_unique<Board>(size());
  heard_ = std::vector<std::atomic<Clock::time_point>>(static_cast<std::size_t>(size()));
  for (auto& heard : heard_) heard.store(Clock::now());
}

ProcessWorld::~ProcessWorld() {
  board_->gone(rank_).store(1);
  for (const int process : processes_) {
    if (process >= 0) close(process);
  }
  for (const auto& [file, mapping] : mappings_) {
    munmap(const_cast<std::byte*>(mapping.data), mapping.bytes);
  }
}

bool ProcessWorld::is_far(int rank) const {
  return messages_ != nullptr && far_[static_cast<std::size_t>(rank)];
}

Seat& ProcessWorld::seat(int channel, int rank) {
  return board_of(rank).seat(channel, rank);
}

void ProcessWorld::beat() {
  if (messages_ != nullptr) tell_far_ranks({.kind = Letter::Kind::kAlive});
}

void ProcessWorld::receive(const Letter& letter) {
  heard_[static_cast<std::size_t>(letter.from)].store(Clock::now());
  Seat& seat = far_board_->seat(letter.channel, letter.from);
  switch (letter.kind) {
    case Letter::Kind::kArrived:
      seat.notices[letter.progress / 4 % 2] = letter.notice;
      seat.progress.store(letter.progress, std::memory_order_release);
      break;
    case Letter::Kind::kLeft:
      seat.issued = letter.issued;
      seat.left.store(letter.left, std::memory_order_release);
      break;
    case Letter::Kind::kWaits:
      far_board_->waits(letter.from).store(letter.waits);
      return;
    case Letter::Kind::kAlive:
      return;
    case Letter::Kind::kGone:
      far_board_->gone(letter.from).store(1);
      return;
    case Letter::Kind::kFailed:
      board_->fail({.message = std::string(letter.text, letter.text_bytes),
                    .culprit = letter.culprit,
                    .names_operation = letter.names_operation != 0});
      return;
  }
  wake(seat.progress);
}

void ProcessWorld::tell(int far_rank, Letter letter) {
  letter.from = rank_;
  messages_->tell(far_rank, letter);
}

void ProcessWorld::tell_far_ranks(const Letter& letter) {
  for (int rank = 0; rank < size(); ++rank) {
    if (is_far(rank)) tell(rank, letter);
  }
}

void ProcessWorld::fail(const collective::Failure& failure) noexcept {
  if (!board_->fail(failure) || messages_ == nullptr) return;
  Letter letter = {.kind = Letter::Kind::kFailed,
                   .culprit = failure.culprit,
                   .names_operation = failure.names_operation ? 1U : 0U};
  letter.text_bytes =
      static_cast<std::uint32_t>(std::min(failure.message.size(), Letter::kTextBytes));
  std::memcpy(letter.text, failure.message.data(), letter.text_bytes);
  try {
    tell_far_ranks(letter);
  } catch (...) {
    // No memory for a letter: the far ranks wait for their timeout.
  }
}

void ProcessWorld::leave() {
  board_->gone(rank_).store(1);
  tell_far_ranks({.kind = Letter::Kind::kGone});
}

bool ProcessWorld::all_left() {
  for (int rank = 0; rank < size(); ++rank) {
    if (board_of(rank).gone(rank).load() == 0) return false;
  }
  return true;
}

Board& ProcessWorld::board_of(int rank) const {
  return is_far(rank) ? *far_board_ : *board_;
}

void ProcessWorld::know_processes(const std::vector<std::int32_t>& numbers) {
  for (int rank = 0; rank < size(); ++rank) {
    const std::int32_t number = numbers[static_cast<std::size_t>(rank)];
    if (is_far(rank)) board_->process(rank).store(number);
  }
}

void ProcessWorld::check_processes() {
  const std::scoped_lock lock(mutex_);
  for (int rank = 0; rank < size(); ++rank) {
    const int number = board_->process(rank).load();
    const std::atomic<std::uint32_t>& gone = board_of(rank).gone(rank);
    if (number == 0 || number == getpid() || gone.load() != 0) continue;
    int& process = processes_[static_cast<std::size_t>(rank)];
    if (process < 0) process = static_cast<int>(syscall(SYS_pidfd_open, number, 0));
    pollfd ended = {.fd = process, .events = POLLIN, .revents = 0};
    const bool dead = process < 0 ? errno == ESRCH : poll(&ended, 1, 0) == 1;
    // It may have left in peace since.
    if (dead && gone.load() == 0) {
      fail({.message = concat("rank ", rank, " has died (process ", number, ")"), .culprit = rank});
    }
  }
}

void ProcessWorld::waits_long(int change) noexcept {
  try {
    const std::scoped_lock lock(mutex_);
    std::atomic<std::uint32_t>& waits = board_->waits(rank_);
    waits.store(waits.load() + static_cast<std::uint32_t>(change));
    // After a failure nobody asks.
    if (messages_ == nullptr || board_->failed()) return;
    tell_far_ranks({.kind = Letter::Kind::kWaits, .waits = waits.load()});
  } catch (...) {
    // No memory for a letter: others may name this rank as well.
  }
}

bool ProcessWorld::waits_itself(int rank) const {
  return board_of(rank).waits(rank).load() > 0 && standstill_of(rank).empty();
}

void ProcessWorld::waits_in(int channel, std::string operation) {
  const std::scoped_lock lock(mutex_);
  waits_in_[channel] = std::move(operation);
}

void ProcessWorld::waits_no_more(int channel) {
  const std::scoped_lock lock(mutex_);
  waits_in_.erase(channel);
}

bool ProcessWorld::knows_operation(const collective::Failure& failure) const {
  const std::scoped_lock lock(mutex_);
  return failure.names_operation || !waits_in_.empty();
}

std::string ProcessWorld::own_words(const collective::Failure& failure) const {
  const std::scoped_lock lock(mutex_);
  std::string text = failure.message;
  if (failure.names_operation) return text;
  const char* separator = "; this rank waits in ";
  for (const auto& [channel, operation] : waits_in_) {
    text += separator + operation;
    separator = " and ";
  }
  return text;
}

std::string ProcessWorld::state_of(int rank) const {
  if (waits_itself(rank)) return collective::waits_itself(rank);
  return standstill_of(rank);
}

std::string ProcessWorld::standstill_of(int rank) const {
  const int number = board_->process(rank).load();
  if (number != 0 && is_stopped(number)) {
    return concat(" (rank ", rank, " is stopped, process ", number, ')');
  }
  if (!is_far(rank)) return "";
  const auto silence = Clock::now() - heard_[static_cast<std::size_t>(rank)].load();
  if (silence < kSilence) return "";
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(silence);
  return concat(" (no sign of life of rank ", rank, " for ", collective::text_of(seconds), ')');
}

const std::byte* ProcessWorld::memory_of(int rank, const Notice& notice) {
  const std::scoped_lock lock(mutex_);
  const auto known = mappings_.find({rank, notice.file});
  if (known != mappings_.end()) return known->second.data + notice.offset;
  const std::string path =
      concat("/proc/", board_->process(rank).load(), "/fd/", notice.descriptor);
  const auto bytes = static_cast<std::size_t>(notice.file_bytes);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* data = MAP_FAILED;
  if (file >= 0) data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, file, 0);
  const int reason = errno;
  if (file >= 0) close(file);
  if (data == MAP_FAILED) {
    throw CommError(
        concat("the memory of rank ", rank, " cannot be mapped: ", std::strerror(reason)));
  }
  const Mapping mapping = {static_cast<const std::byte*>(data), bytes};
  mappings_[{rank, notice.file}] = mapping;
  return mapping.data + notice.offset;
}

void ProcessWorld::abort(int rank, std::string_view reason) noexcept {
  try {
    fail({.message = concat("aborted by rank ", rank, ": ", reason), .culprit = rank});
  } catch (...) {
    // No memory for the reason: the others are released all the same, with less to read.
    fail({.message = {}, .culprit = rank});
  }
}

}  // namespace zero3::process
