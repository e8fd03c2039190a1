#pragma once

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
#include "node/board.h"

namespace zero3::node {

/// This process's place among the ranks of one machine, shared by all of its communicators there.
class NodeWorld {
 public:
  NodeWorld(std::unique_ptr<Board> board, int rank, std::chrono::milliseconds timeout);
  ~NodeWorld();
  NodeWorld(const NodeWorld&) = delete;
  NodeWorld& operator=(const NodeWorld&) = delete;

  [[nodiscard]] Board& board() { return *board_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return board_->ranks(); }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }

  /// Fails the world if a peer's process has ended without leaving. Cheap; for any thread.
  void check_processes();
  /// " (process 4711 is stopped)" where that explains why a rank is absent.
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

  std::unique_ptr<Board> board_;
  int rank_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::vector<int> processes_;  ///< a pidfd by rank; -1: this process, or not yet opened
  std::map<std::pair<int, std::uint32_t>, Mapping> mappings_;  ///< by rank and file
};

/// This rank's end of a communicator over all ranks of the board. Waits for nobody: a rank that
/// never comes is absent from the first operation.
[[nodiscard]] std::unique_ptr<Communicator> make_node_communicator(
    std::shared_ptr<NodeWorld> world);

}  // namespace zero3::node
