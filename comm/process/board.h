#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "failure.h"
#include "header.h"

/// What the ranks of one machine tell each other, in memory that their processes share.
namespace zero3::process {

/// One rank's call of a collective, as its peers read it.
struct Notice {
  static constexpr std::size_t kLabelBytes = 128;

  void set(const collective::Header& header);
  [[nodiscard]] collective::Header header() const;
  /// Also where labels are longer than what a notice keeps of them.
  [[nodiscard]] bool agrees_with(const Notice& other) const;

  std::uint8_t operation = 0;
  DType dtype = DType::kU8, source_dtype = DType::kU8;
  Into into = Into::kReplace;
  std::int32_t root = 0;
  std::int64_t bytes = 0;
  std::uint64_t label_hash = 0;
  char label[kLabelBytes] = {};
  // Where the rank's memory is (internal::SharedPlace); file 0: nowhere.
  std::uint32_t file = 0;
  std::int32_t descriptor = -1;
  std::int64_t file_bytes = 0, offset = 0;
  // Of a split.
  std::int32_t color = 0, key = 0, next_channel = 0;
};

/// One rank's part in one communicator. Written by this rank alone.
struct alignas(64) Seat {
  /// Counts what the rank has done in the channel, modulo 2^32, four for each collective: see
  /// ProcessGroup. Others sleep on it.
  std::atomic<std::uint32_t> progress;
  enum : std::uint32_t { kSits, kLeft, kLeftByException };
  std::atomic<std::uint32_t> left;
  /// Collectives issued, once it has left.
  std::int64_t issued;
  Notice notices[2];
};

/// The board of one set of ranks: a seat for each rank in each channel (communicator), and the
/// first failure. All processes map the same file.
class Board {
 public:
  static constexpr int kMostChannels = 1024;

  /// A fresh one. Throws CommError.
  explicit Board(int ranks);
  /// Another process's (or this one's), by the path of its descriptor. Throws CommError.
  Board(const std::string& path, int ranks);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  [[nodiscard]] int ranks() const { return ranks_; }
  /// For others of this machine to open, while this one lives.
  [[nodiscard]] std::string path() const;
  /// A number that no other board has: under a path may be another file, where processes do not
  /// see the same ones.
  [[nodiscard]] std::uint64_t nonce() const;

  [[nodiscard]] Seat& seat(int channel, int rank);
  /// The process that sits there; 0: none yet.
  [[nodiscard]] std::atomic<std::int32_t>& process(int rank);
  /// Set by a rank that ends in peace: its death is none.
  [[nodiscard]] std::atomic<std::uint32_t>& gone(int rank);
  /// Operations in which the rank has waited for others for long (Wait).
  [[nodiscard]] std::atomic<std::uint32_t>& waits(int rank);

  /// Keeps the first; whether this is it.
  bool fail(const collective::Failure& failure) noexcept;
  [[nodiscard]] bool failed() const;
  [[nodiscard]] std::optional<collective::Failure> failure() const;

 private:
  struct Layout;
  void map(int descriptor);

  int ranks_;
  int descriptor_ = -1;
  std::byte* data_ = nullptr;
};

/// Waits until the word changes from `seen` or the time has passed; at first it looks, for some
/// microseconds, and then sleeps, and a wake() ends that as well.
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen,
              std::chrono::milliseconds longest);
/// Wakes everybody who sleeps on the word, in all processes.
void wake(std::atomic<std::uint32_t>& word);

}  // namespace zero3::process
