#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "group.h"
#include "process/exchange.h"
#include "process/process_world.h"

namespace zero3::process {

using collective::Call;

/// Ranks that are processes ([Note: levels] in group.h); for the tasks of one rank.
///
/// Memory of near ranks is read in place. What far ranks read is sent to them within the step, so
/// they have passed all levels but the first as soon as they have arrived. What the first step
/// sends is handed over on arrival, and starts by itself when they have arrived as well: the
/// outputs of that step are written from the arrival on.
///
/// A seat's progress is 4 · sequence + what the rank has done of that collective: 1 it has arrived,
/// 2 and 3 it has done the first and the second step, 4 it has departed. A rank has passed a level
/// of its own account; nobody else keeps one.
class ProcessGroup final : public collective::Group {
 public:
  ProcessGroup(std::shared_ptr<ProcessWorld> world, int channel, std::vector<int> members, int rank,
               std::string name);

  void arrive(const Call& call) override;
  void work(const Call& call, int step) override;
  void depart(const Call& call) override;
  void skip(const Call& call, const std::exception_ptr& error) noexcept override;
  [[nodiscard]] bool passed(const Call& call, int level) override;
  void await(const Call& call, int level) override;
  [[nodiscard]] std::string describe(const Call& call, int level) override;
  [[nodiscard]] std::unique_ptr<Communicator> child(const Call& call) override;
  void end(int rank, std::int64_t issued, bool by_exception) noexcept override;
  void abort(int rank, std::string_view reason) noexcept override;

 private:
  [[nodiscard]] Seat& seat(int rank) const;
  [[nodiscard]] const Notice& notice_of(int rank, const Call& call) const;
  void advance(const Call& call, std::uint32_t done);
  /// Whether rank `rank` of the group has got as far as the level.
  [[nodiscard]] bool reached(int rank, const Call& call, int level) const;
  [[nodiscard]] std::vector<int> absent_from(const Call& call, int level) const;
  [[nodiscard]] bool far_ranks_agree(const Call& call) const;
  void find_sources(const Call& call);
  /// Returns when the transfer is complete.
  void await_transfer(const Call& call, int step, Transfer& transfer);
  void check_agreement(const Call& call);
  void check_left(const Call& call, int rank);
  void throw_if_failed(const Call& call);
  [[noreturn]] void fail(const Call& call, const collective::Failure& failure);
  /// Where `overdue` is empty there is time yet.
  void fail_late(const Call& call, int level, const std::vector<int>& overdue);

  std::shared_ptr<ProcessWorld> world_;
  int channel_;
  int rank_;
  std::vector<int> far_;                ///< ranks of this group
  std::unique_ptr<Exchange> exchange_;  ///< null: all are near
  std::vector<const void*> sources_;    ///< of the call whose step runs, by rank
  std::int64_t agreed_ = 0;             ///< collectives in which all headers were found equal
};

}  // namespace zero3::process
