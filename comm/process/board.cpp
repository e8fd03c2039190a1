#include "process/board.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <random>

#include <zero3/error.h>

namespace zero3::process {
namespace {

/// A core that sleeps takes as long to wake up, and many waits for ranks that do the same are
/// shorter.
constexpr std::chrono::microseconds kSpin{50};

constexpr std::uint8_t kSplit = kCollectiveOpCount;
constexpr std::size_t kMessageBytes = 2048;

/// FNV-1a (Fowler, Noll, Vo): equal in every process.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::uint8_t number_of(std::string_view operation) {
  for (std::uint8_t op = 0; op < kCollectiveOpCount; ++op) {
    if (name_of(static_cast<CollectiveOp>(op)) == operation) return op;
  }
  return kSplit;
}

}  // namespace

void Notice::set(const collective::Header& header) {
  operation = number_of(header.operation);
  dtype = header.dtype;
  source_dtype = header.source_dtype;
  into = header.into;
  root = header.root;
  bytes = header.bytes.count();
  label_hash = hash_of(header.label);
  const std::size_t kept = std::min(header.label.size(), kLabelBytes - 1);
  std::memcpy(label, header.label.data(), kept);
  label[kept] = '\0';
}

collective::Header Notice::header() const {
  return {.operation = operation == kSplit ? std::string_view("split")
                                           : name_of(static_cast<CollectiveOp>(operation)),
          .label = label,
          .bytes = Bytes(bytes),
          .dtype = dtype,
          .source_dtype = source_dtype,
          .into = into,
          .root = root};
}

bool Notice::agrees_with(const Notice& other) const {
  return label_hash == other.label_hash && header() == other.header();
}

struct Board::Layout {
  enum : std::uint32_t { kFine, kFailing, kFailed };
  struct alignas(64) Process {
    std::atomic<std::int32_t> number;
    std::atomic<std::uint32_t> gone, waits;
  };

  std::uint64_t nonce;
  std::atomic<std::uint32_t> state;
  std::int32_t culprit;
  std::uint32_t names_operation;
  char message[kMessageBytes];

  static std::size_t processes_at() { return (sizeof(Layout) + 63) / 64 * 64; }
  static std::size_t seats_at(int ranks) {
    return processes_at() + sizeof(Process) * static_cast<std::size_t>(ranks);
  }
  static std::size_t size(int ranks) {
    return seats_at(ranks) + sizeof(Seat) * static_cast<std::size_t>(ranks) * kMostChannels;
  }
  static Layout& of(std::byte* data) { return *reinterpret_cast<Layout*>(data); }
  static Process& process(std::byte* data, int rank) {
    return reinterpret_cast<Process*>(data + processes_at())[rank];
  }
};

// The file is zeros at first, which is a valid beginning of everything in it.
Board::Board(int ranks) : ranks_(ranks) {
  const int file = memfd_create("zero3-board", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(Layout::size(ranks))) != 0) {
    close(file);
    throw CommError(concat("no memory to share between ranks: ", std::strerror(errno)));
  }
  map(file);
  std::random_device random;
  Layout::of(data_).nonce = (std::uint64_t{random()} << 32) | random();
}

Board::Board(const std::string& path, int ranks) : ranks_(ranks) {
  map(open(path.c_str(), O_RDWR | O_CLOEXEC));
}

void Board::map(int descriptor) {
  void* mapped = MAP_FAILED;
  if (descriptor >= 0) {
    mapped = mmap(nullptr, Layout::size(ranks_), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  if (mapped == MAP_FAILED) {
    const int error = errno;
    if (descriptor >= 0) close(descriptor);
    throw CommError(concat("cannot map memory shared between ranks: ", std::strerror(error)));
  }
  descriptor_ = descriptor;
  data_ = static_cast<std::byte*>(mapped);
}

Board::~Board() {
  munmap(data_, Layout::size(ranks_));
  close(descriptor_);
}

std::string Board::path() const {
  return concat("/proc/", getpid(), "/fd/", descriptor_);
}

std::uint64_t Board::nonce() const {
  return Layout::of(data_).nonce;
}

Seat& Board::seat(int channel, int rank) {
  auto* seats = reinterpret_cast<Seat*>(data_ + Layout::seats_at(ranks_));
  return seats[channel * ranks_ + rank];
}

std::atomic<std::int32_t>& Board::process(int rank) {
  return Layout::process(data_, rank).number;
}

std::atomic<std::uint32_t>& Board::gone(int rank) {
  return Layout::process(data_, rank).gone;
}

std::atomic<std::uint32_t>& Board::waits(int rank) {
  return Layout::process(data_, rank).waits;
}

bool Board::fail(const collective::Failure& failure) noexcept {
  Layout& layout = Layout::of(data_);
  std::uint32_t expected = Layout::kFine;
  if (!layout.state.compare_exchange_strong(expected, Layout::kFailing)) return false;
  layout.culprit = failure.culprit;
  layout.names_operation = failure.names_operation ? 1 : 0;
  const std::size_t kept = std::min(failure.message.size(), kMessageBytes - 1);
  std::memcpy(layout.message, failure.message.data(), kept);
  layout.message[kept] = '\0';
  layout.state.store(Layout::kFailed, std::memory_order_release);
  wake(layout.state);
  return true;
}

bool Board::failed() const {
  return Layout::of(data_).state.load(std::memory_order_acquire) != Layout::kFine;
}

std::optional<collective::Failure> Board::failure() const {
  Layout& layout = Layout::of(data_);
  if (!failed()) return std::nullopt;
  // Whoever writes it may die in the middle.
  constexpr auto kLongest = std::chrono::seconds(1);
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  while (layout.state.load(std::memory_order_acquire) == Layout::kFailing) {
    if (std::chrono::steady_clock::now() > deadline) {
      return collective::Failure{.message = "a rank died while it reported a failure"};
    }
    sleep_on(layout.state, Layout::kFailing, std::chrono::milliseconds(10));
  }
  return collective::Failure{.message = layout.message,
                             .culprit = layout.culprit,
                             .names_operation = layout.names_operation != 0};
}

void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen,
              std::chrono::milliseconds longest) {
  static_assert(sizeof(word) == sizeof(std::uint32_t), "a futex is a plain word");
  const auto spin_end = std::chrono::steady_clock::now() + kSpin;
  do {
    if (word.load(std::memory_order_acquire) != seen) return;
    sched_yield();
  } while (std::chrono::steady_clock::now() < spin_end);
  const timespec time = {.tv_sec = longest.count() / 1000,
                         .tv_nsec = (longest.count() % 1000) * 1000000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace zero3::process
