#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "process/board.h"

namespace zero3::process {

/// What a rank tells one that does not see its seat.
struct Letter {
  enum class Kind : std::uint32_t {
    kArrived,  ///< channel, progress, notice
    kLeft,     ///< channel, left, issued: the rank's part in a communicator has ended
    kWaits,    ///< waits: operations in which the rank has waited for long
    kAlive,    ///< the rank's process runs, whatever the rank is in
    kGone,     ///< the rank ends in peace
    kFailed    ///< culprit, names_operation, text: the world has failed
  };
  static constexpr std::size_t kTextBytes = 2048;

  /// Of what has to travel: all that precedes the text, and of that as much as there is.
  [[nodiscard]] std::size_t bytes() const;

  Kind kind = Kind::kGone;
  std::int32_t from = 0, channel = 0;
  std::uint32_t progress = 0, left = 0, waits = 0;
  std::int32_t culprit = -1;
  std::uint32_t names_operation = 0, text_bytes = 0;
  std::int64_t issued = 0;
  Notice notice = {};
  char text[kTextBytes] = {};
};

/// Bytes that one rank sends to others and receives from others, all at once. Between two ranks the
/// n-th part sent in a channel is the n-th one received there.
class Transfer {
 public:
  struct Send {
    int rank;
    const std::byte* data;
    std::int64_t bytes;
  };
  struct Receive {
    int rank;
    std::byte* data;
    std::int64_t bytes;
  };

  /// Whether the ranks it is for have come to it, and agree. Asked by who carries it, whenever
  /// letters have come, and no more once it is closed; stays true.
  using MayStart = std::function<bool()>;

  /// Starts at once where `may_start_if` is empty.
  Transfer(int channel_number, std::vector<Send> to_send, std::vector<Receive> to_receive,
           MayStart may_start_if = nullptr);

  const int channel;
  const std::vector<Send> sends;
  const std::vector<Receive> receives;

  [[nodiscard]] bool may_start() const { return !may_start_ || may_start_(); }
  /// Part `i` has moved, sends first.
  void moved(std::size_t i);
  /// Its memory is touched no more; wakes who sleeps.
  void close();
  [[nodiscard]] bool open() const { return open_.load(std::memory_order_acquire) != 0; }
  [[nodiscard]] bool complete() const { return left_.load(std::memory_order_acquire) == 0; }
  /// Ranks that a part has not moved to or from, in order.
  [[nodiscard]] std::vector<int> missing() const;
  /// Sleeps until it is closed or the time has passed.
  void sleep(std::chrono::milliseconds longest);

 private:
  MayStart may_start_;
  std::vector<std::atomic<bool>> moved_;
  std::atomic<std::size_t> left_;
  std::atomic<std::uint32_t> open_{1};
};

/// Carries letters and bytes between ranks that share no memory. For any thread.
class Messages {
 public:
  virtual ~Messages() = default;
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Brings the letter to ProcessWorld::receive of that rank, in order of telling.
  virtual void tell(int rank, const Letter& letter) = 0;
  /// Starts the transfer when it may, and closes it when all of its parts have moved. Its memory
  /// stays valid until it is closed. Of two of a channel the earlier may start whenever the
  /// later may.
  virtual void begin(std::shared_ptr<Transfer> transfer) = 0;
  /// After a failure of the world: closes it as it is. Returns when it is closed.
  virtual void give_up(Transfer& transfer) noexcept = 0;
  /// While a rank waits for letters (+1, then -1) they are looked for often.
  virtual void expect(int change) = 0;

 protected:
  Messages() = default;
};

}  // namespace zero3::process
