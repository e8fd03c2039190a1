#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "process/messages.h"
#include "step.h"

namespace zero3::process {

/// Runs steps of one rank in a group some of whose ranks are far: their memory comes as messages,
/// that of the others is read in place. What is kept is received where it belongs; what is folded
/// comes in pieces of bounded size, so that the staging does not grow with the payload.
class Exchange {
 public:
  /// Returns when the transfer is closed; throws if it is not complete then.
  using Await = std::function<void(Transfer&)>;

  /// `members` are ranks of the world by rank of the group, `far` ranks of the group.
  Exchange(Messages& messages, int channel, const std::vector<int>& members, int rank,
           std::vector<int> far);

  /// Begins what run() of the same step would begin with, to start once it may: so that the thread
  /// that carries messages need not ask this one in between.
  void prepare(const collective::Step& step, const void* own, Transfer::MayStart may_start);
  /// sources[r] is where rank r's memory is; null for those that are far.
  void run(const collective::Step& step, std::span<const void* const> sources, const Await& await);
  /// After a failure of the world: nothing touches the memory of the step any more.
  void give_up() noexcept;

 private:
  void keep_all(const collective::Step& step, std::span<const void* const> sources,
                const Await& await);
  void fold_all(const collective::Step& step, std::span<const void* const> sources,
                const Await& await);
  void begin_parts(const collective::Step& step, const void* own, Transfer::MayStart may_start);
  [[nodiscard]] std::int64_t pieces_of(const collective::Step& step) const;
  /// The pieces `first` and after it, as far as they have room and are not under way.
  void begin_pieces(const collective::Step& step, const void* own, std::int64_t first,
                    const Transfer::MayStart& may_start);
  void begin_piece(const collective::Step& step, const void* own, std::int64_t number,
                   Transfer::MayStart may_start);
  void fold_piece(const collective::Step& step, std::span<const void* const> sources,
                  std::int64_t number);
  void begin(std::size_t slot, std::shared_ptr<Transfer> transfer);

  enum Area : std::uint8_t { kLanding0, kLanding1, kOutgoing0, kOutgoing1, kWidened, kAreas };
  [[nodiscard]] std::byte* staging(int area, std::size_t far_index);
  [[nodiscard]] int in_world(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  Messages& messages_;
  int channel_;
  std::vector<int> members_;
  int rank_;
  std::vector<int> far_;
  std::size_t piece_bytes_;
  std::vector<std::byte> staging_;
  std::array<std::shared_ptr<Transfer>, 2> under_way_;  ///< pieces by their slot
};

}  // namespace zero3::process
