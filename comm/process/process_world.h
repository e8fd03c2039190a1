#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <zero3/communicator.h>
#include "process/board.h"
#include "process/messages.h"

namespace zero3::process {

/// This process's place among the ranks, shared by all of its communicators.
///
/// A rank is near, and then a process that maps the same board and whose memory can be mapped, or
/// far, and then reached by messages. What far ranks tell stands on a board of this process's own.
class ProcessWorld {
 public:
  /// All ranks are near.
  ProcessWorld(std::unique_ptr<Board> board, int rank, std::chrono::milliseconds timeout);
  /// `far[r]`: rank r is. `messages` outlives this; null where no rank is far.
  ProcessWorld(std::unique_ptr<Board> board, int rank, std::chrono::milliseconds timeout,
               std::vector<bool> far, Messages* messages);
  ~ProcessWorld();
  ProcessWorld(const ProcessWorld&) = delete;
  ProcessWorld& operator=(const ProcessWorld&) = delete;

  [[nodiscard]] const Board& board() const { return *board_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return board_->ranks(); }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }

  [[nodiscard]] bool is_far(int rank) const;
  [[nodiscard]] Messages* messages() const { return messages_; }
  [[nodiscard]] Seat& seat(int channel, int rank);

  /// Between two signs of life.
  static constexpr std::chrono::seconds kHeartbeat{1};

  /// Tells far ranks that this process runs; every kHeartbeat, from a thread that waits for no
  /// rank. Of near ranks the system says it.
  void beat();
  /// A letter of a far rank.
  void receive(const Letter& letter);
  void tell(int far_rank, Letter letter);

  /// The world fails on every rank, unless it has already.
  void fail(const collective::Failure& failure) noexcept;
  /// This rank ends in peace: its death is none.
  void leave();
  /// Whether all ranks have.
  [[nodiscard]] bool all_left();

  /// By rank, 0: unknown. Those of near ranks are known by themselves.
  void know_processes(const std::vector<std::int32_t>& numbers);
  /// Fails the world if a known process has ended without leaving. Cheap; for any thread.
  void check_processes();
  /// This rank has waited in one operation more (+1) or less (-1) for so long that others, who run
  /// out of time as well, shall not take it for the cause.
  void waits_long(int change) noexcept;
  /// Whether the rank runs, and is in such a wait.
  [[nodiscard]] bool waits_itself(int rank) const;
  /// What this rank waits in, of one communicator; for its own line about a failure.
  void waits_in(int channel, std::string operation);
  void waits_no_more(int channel);
  /// Whether own_words() names an operation.
  [[nodiscard]] bool knows_operation(const collective::Failure& failure) const;
  /// The failure as this rank tells it: with what it waited in, where the failure names none.
  [[nodiscard]] std::string own_words(const collective::Failure& failure) const;

  /// " (rank 1 is stopped, process 4711)", " (no sign of life of rank 1 for 12 s)", " (rank 1 waits
  /// itself)" where that explains why a rank is absent.
  [[nodiscard]] std::string state_of(int rank) const;

  /// Where this process finds the memory that a peer's notice names. Throws CommError if it cannot
  /// be mapped. Mapped once for each file, for good.
  [[nodiscard]] const std::byte* memory_of(int rank, const Notice& notice);

  /// Every operation fails from now on; `rank` is the cause.
  void abort(int rank, std::string_view reason) noexcept;

  /// Of the next communicator that this rank takes part in; guarded by the order of its splits.
  int next_channel = 1;

 private:
  struct Mapping {
    const std::byte* data;
    std::size_t bytes;
  };

  using Clock = std::chrono::steady_clock;

  [[nodiscard]] Board& board_of(int rank) const;
  /// Empty: nothing keeps its process from running, as far as is known.
  [[nodiscard]] std::string standstill_of(int rank) const;
  void tell_far_ranks(const Letter& letter);

  std::unique_ptr<Board> board_;
  int rank_;
  std::chrono::milliseconds timeout_;
  std::vector<bool> far_;
  Messages* messages_ = nullptr;
  std::unique_ptr<Board> far_board_;
  std::vector<std::atomic<Clock::time_point>> heard_;  ///< the last letter, by rank
  mutable std::mutex mutex_;
  std::map<int, std::string> waits_in_;  ///< by channel
  std::vector<int> processes_;           ///< a pidfd by rank; -1: this process, or not yet opened
  std::map<std::pair<int, std::uint32_t>, Mapping> mappings_;  ///< by rank and file
};

/// This rank's end of a communicator over all ranks of the board. Waits for nobody: a rank that
/// never comes is absent from the first operation.
[[nodiscard]] std::unique_ptr<Communicator> make_process_communicator(
    std::shared_ptr<ProcessWorld> world);

}  // namespace zero3::process
