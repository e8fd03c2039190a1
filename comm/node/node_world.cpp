#include "node/node_world.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include <zero3/error.h>

namespace zero3::node {

NodeWorld::NodeWorld(std::unique_ptr<Board> board, int rank, std::chrono::milliseconds timeout)
    : board_(std::move(board)),
      rank_(rank),
      timeout_(timeout),
      processes_(static_cast<std::size_t>(board_->ranks()), -1) {
  board_->process(rank).store(getpid());
}

NodeWorld::~NodeWorld() {
  board_->gone(rank_).store(1);
  for (const int process : processes_) {
    if (process >= 0) close(process);
  }
  for (const auto& [file, mapping] : mappings_) {
    munmap(const_cast<std::byte*>(mapping.data), mapping.bytes);
  }
}

void NodeWorld::check_processes() {
  const std::scoped_lock lock(mutex_);
  for (int rank = 0; rank < size(); ++rank) {
    const int number = board_->process(rank).load();
    if (number == 0 || number == getpid() || board_->gone(rank).load() != 0) continue;
    int& process = processes_[static_cast<std::size_t>(rank)];
    if (process < 0) process = static_cast<int>(syscall(SYS_pidfd_open, number, 0));
    pollfd ended = {.fd = process, .events = POLLIN, .revents = 0};
    const bool dead = process < 0 ? errno == ESRCH : poll(&ended, 1, 0) == 1;
    // It may have left in peace since.
    if (dead && board_->gone(rank).load() == 0) {
      board_->fail(
          {.message = concat("rank ", rank, " has died (process ", number, ")"), .culprit = rank});
    }
  }
}

std::string NodeWorld::state_of(int rank) const {
  const int number = board_->process(rank).load();
  std::ifstream file(concat("/proc/", number, "/stat"));
  std::string text;
  std::getline(file, text);
  // The state follows the name, which is in brackets and may hold any character.
  const std::size_t bracket = text.rfind(')');
  if (bracket == std::string::npos || bracket + 2 >= text.size()) return "";
  return text[bracket + 2] == 'T' ? concat(" (process ", number, " is stopped)") : "";
}

const std::byte* NodeWorld::memory_of(int rank, const Notice& notice) {
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

void NodeWorld::abort(int rank, std::string_view reason) noexcept {
  try {
    board_->fail({.message = concat("aborted by rank ", rank, ": ", reason), .culprit = rank});
  } catch (...) {
    // No memory for the reason: the others are released all the same, with less to read.
    board_->fail({.message = {}, .culprit = rank});
  }
}

}  // namespace zero3::node
