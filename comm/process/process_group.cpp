#include "process/process_group.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include <zero3/internal/shared_place.h>
#include "group_communicator.h"
#include "process/wait.h"

namespace zero3::process {
namespace {

using collective::Failure;

/// Within which a waiting rank notices a failure and a death.
constexpr std::chrono::milliseconds kSlice{50};

constexpr std::uint32_t base(std::int64_t sequence) {
  return static_cast<std::uint32_t>(sequence * 4);
}

/// Letters are looked for often as long as it lives.
class Expecting {
 public:
  explicit Expecting(Messages* messages) : messages_(messages) {
    if (messages_ != nullptr) messages_->expect(1);
  }
  ~Expecting() {
    if (messages_ != nullptr) messages_->expect(-1);
  }
  Expecting(const Expecting&) = delete;
  Expecting& operator=(const Expecting&) = delete;

 private:
  Messages* messages_;
};

}  // namespace

ProcessGroup::ProcessGroup(std::shared_ptr<ProcessWorld> world, int channel,
                           std::vector<int> members, int rank, std::string name)
    : Group(std::move(members), std::move(name)),
      world_(std::move(world)),
      channel_(channel),
      rank_(rank) {
  for (int peer = 0; peer < size(); ++peer) {
    if (world_->is_far(in_world(peer))) far_.push_back(peer);
  }
  if (far_.empty()) return;
  exchange_ =
      std::make_unique<Exchange>(*world_->messages(), channel_, this->members(), rank_, far_);
}

Seat& ProcessGroup::seat(int rank) const {
  return world_->seat(channel_, in_world(rank));
}

const Notice& ProcessGroup::notice_of(int rank, const Call& call) const {
  return seat(rank).notices[call.sequence % 2];
}

void ProcessGroup::advance(const Call& call, std::uint32_t done) {
  Seat& own = seat(rank_);
  own.progress.store(base(call.sequence) + done, std::memory_order_release);
  wake(own.progress);
}

bool ProcessGroup::reached(int rank, const Call& call, int level) const {
  if (level > 0 && world_->is_far(in_world(rank))) level = 0;
  const std::uint32_t progress = seat(rank).progress.load(std::memory_order_acquire);
  const std::uint32_t needed = base(call.sequence) + static_cast<std::uint32_t>(level + 1);
  return static_cast<std::int32_t>(progress - needed) >= 0;
}

void ProcessGroup::arrive(const Call& call) {
  throw_if_failed(call);
  Notice& notice = seat(rank_).notices[call.sequence % 2];
  notice.set(call.header);
  notice.file = 0;
  notice.color = call.color;
  notice.key = call.key;
  notice.next_channel = world_->next_channel;
  const bool read_in_place = static_cast<int>(far_.size()) + 1 < size();
  if (read_in_place && call.source != nullptr && call.header.bytes.count() > 0) {
    const auto place = internal::shared_place(call.source);
    if (!place) {
      fail(call, {.message = concat(full_name(call), ": the memory of rank ", in_world(rank_),
                                    " is its process's own; make its device with "
                                    "DeviceOptions::shared"),
                  .culprit = in_world(rank_),
                  .names_operation = true});
    }
    notice.file = place->file;
    notice.descriptor = place->descriptor;
    notice.file_bytes = place->file_bytes;
    notice.offset = place->offset;
  }
  advance(call, 1);
  for (const int rank : far_) {
    world_->tell(in_world(rank), {.kind = Letter::Kind::kArrived,
                                  .channel = channel_,
                                  .progress = base(call.sequence) + 1,
                                  .notice = notice});
  }
  if (!exchange_ || call.steps.empty()) return;
  exchange_->prepare(call.steps[0], call.source,
                     [this, call = &call] { return far_ranks_agree(*call); });
}

bool ProcessGroup::far_ranks_agree(const Call& call) const {
  const Notice& own = notice_of(rank_, call);
  return std::all_of(far_.begin(), far_.end(), [&](int rank) {
    return reached(rank, call, 0) && notice_of(rank, call).agrees_with(own);
  });
}

void ProcessGroup::work(const Call& call, int step) {
  throw_if_failed(call);
  const collective::Step& part = call.steps[static_cast<std::size_t>(step)];
  try {
    find_sources(call);
    if (exchange_) {
      exchange_->run(part, sources_,
                     [&](Transfer& transfer) { await_transfer(call, step, transfer); });
    } else {
      run_in_place(part, rank_, sources_);
    }
    if (part.finish) part.finish(call);
  } catch (...) {
    world_->fail(step_failed(call, std::current_exception()));
    if (exchange_) exchange_->give_up();
    throw;
  }
  advance(call, static_cast<std::uint32_t>(step) + 2);
}

void ProcessGroup::find_sources(const Call& call) {
  sources_.assign(members().size(), nullptr);
  for (int rank = 0; rank < size(); ++rank) {
    const Notice& notice = notice_of(rank, call);
    if (rank == rank_) {
      sources_[static_cast<std::size_t>(rank)] = call.source;
    } else if (!world_->is_far(in_world(rank)) && notice.file != 0) {
      sources_[static_cast<std::size_t>(rank)] = world_->memory_of(in_world(rank), notice);
    }
  }
}

void ProcessGroup::await_transfer(const Call& call, int step, Transfer& transfer) {
  Wait wait(*world_);
  while (transfer.open()) {
    throw_if_failed(call);
    if (wait.is_late()) fail_late(call, step + 1, wait.overdue(transfer.missing()));
    world_->waits_in(channel_, full_name(call));
    transfer.sleep(kSlice);
  }
  world_->waits_no_more(channel_);
  if (!transfer.complete()) throw_if_failed(call);
}

void ProcessGroup::depart(const Call& call) {
  advance(call, 4);
}

void ProcessGroup::skip(const Call& call, const std::exception_ptr& error) noexcept {
  try {
    world_->fail(stream_failed(call, error));
  } catch (...) {
    world_->abort(in_world(rank_), "its stream has failed");
  }
  // What it has prepared is its own, and of no other call, from its arrival on.
  if (exchange_ && reached(rank_, call, 0)) exchange_->give_up();
}

bool ProcessGroup::passed(const Call& call, int level) {
  if (level == kTurn) {
    if (reached(rank_, call, -1)) return true;
  } else if (absent_from(call, level).empty()) {
    if (level == 0) check_agreement(call);
    return true;
  }
  throw_if_failed(call);
  return false;
}

void ProcessGroup::await(const Call& call, int level) {
  const Expecting expecting(far_.empty() || level != 0 ? nullptr : world_->messages());
  Wait wait(*world_);
  bool waits = false;
  const auto wait_for = [&](int rank) {
    Seat& peer = seat(rank);
    while (true) {
      const std::uint32_t seen = peer.progress.load(std::memory_order_acquire);
      if (reached(rank, call, level)) return;
      if (!std::exchange(waits, true)) world_->waits_in(channel_, full_name(call));
      if (level != kTurn) check_left(call, rank);
      world_->check_processes();
      throw_if_failed(call);
      // A turn has no limit of its own: a peer that waits for this rank has one.
      if (level != kTurn && wait.is_late()) {
        fail_late(call, level, wait.overdue(absent_from(call, level)));
      }
      sleep_on(peer.progress, seen, kSlice);
    }
  };
  if (level == kTurn) {
    wait_for(rank_);
    if (waits) world_->waits_no_more(channel_);
    return;
  }
  for (int rank = 0; rank < size(); ++rank) wait_for(rank);
  // Not where it fails: what it waited in is told then.
  if (waits) world_->waits_no_more(channel_);
  if (level == 0) check_agreement(call);
}

void ProcessGroup::fail_late(const Call& call, int level, const std::vector<int>& overdue) {
  if (overdue.empty()) return;
  Failure failure = too_late(call, level, overdue, world_->timeout());
  for (const int rank : overdue) failure.message += world_->state_of(rank);
  fail(call, failure);
}

void ProcessGroup::check_agreement(const Call& call) {
  if (agreed_ > call.sequence) return;
  // The first rank that differs from rank 0 names itself, so that all ranks say the same.
  const Notice& first = notice_of(0, call);
  for (int rank = 1; rank < size(); ++rank) {
    const Notice& other = notice_of(rank, call);
    if (other.agrees_with(first)) continue;
    std::vector<int> with_first;
    for (int peer = 0; peer < size(); ++peer) {
      if (notice_of(peer, call).agrees_with(first)) with_first.push_back(in_world(peer));
    }
    Call different = {
        .group = nullptr, .rank = rank, .sequence = call.sequence, .header = other.header()};
    fail(call, mismatch(different, with_first, first.header()));
  }
  agreed_ = call.sequence + 1;
}

void ProcessGroup::check_left(const Call& call, int rank) {
  const Seat& peer = seat(rank);
  const std::uint32_t left = peer.left.load(std::memory_order_acquire);
  if (left == Seat::kSits || peer.issued > call.sequence) return;
  std::vector<int> waiting;
  for (int other = 0; other < size(); ++other) {
    if (reached(other, call, 0)) waiting.push_back(in_world(other));
  }
  fail(call, ended(rank, peer.issued, left == Seat::kLeftByException, waiting, call));
}

void ProcessGroup::throw_if_failed(const Call& call) {
  if (!world_->board().failed()) return;
  world_->waits_in(channel_, full_name(call));
  throw error(call, *world_->board().failure());
}

void ProcessGroup::fail(const Call& call, const Failure& failure) {
  world_->fail(failure);
  throw error(call, *world_->board().failure());
}

std::vector<int> ProcessGroup::absent_from(const Call& call, int level) const {
  std::vector<int> absent;
  for (int rank = 0; rank < size(); ++rank) {
    if (!reached(rank, call, level)) absent.push_back(in_world(rank));
  }
  return absent;
}

std::string ProcessGroup::describe(const Call& call, int level) {
  if (level == kTurn) return description(call, level, {});
  return description(call, level, absent_from(call, level));
}

std::unique_ptr<Communicator> ProcessGroup::child(const Call& call) {
  std::vector<std::pair<int, int>> ordered;  // (key, rank)
  std::set<int> colors;
  int first_channel = 0;
  for (int rank = 0; rank < size(); ++rank) {
    const Notice& notice = notice_of(rank, call);
    first_channel = std::max(first_channel, notice.next_channel);
    colors.insert(notice.color);
    if (notice.color == call.color) ordered.emplace_back(notice.key, rank);
  }
  const auto before = std::distance(colors.begin(), colors.find(call.color));
  const int channel = first_channel + static_cast<int>(before);
  ZERO3_CHECK(channel < Board::kMostChannels, "more than ", Board::kMostChannels,
              " communicators were split from one world");
  world_->next_channel = first_channel + static_cast<int>(colors.size());
  std::sort(ordered.begin(), ordered.end());
  std::vector<int> members;
  int own = 0;
  for (const auto& [key, rank] : ordered) {
    if (rank == rank_) own = static_cast<int>(members.size());
    members.push_back(in_world(rank));
  }
  std::string name =
      concat("communicator ", channel, " (", collective::text_of_ranks(members), ")");
  return std::make_unique<collective::GroupCommunicator>(
      std::make_shared<ProcessGroup>(world_, channel, std::move(members), own, std::move(name)),
      own);
}

void ProcessGroup::end(int, std::int64_t issued, bool by_exception) noexcept {
  Seat& own = seat(rank_);
  own.issued = issued;
  const std::uint32_t left = by_exception ? Seat::kLeftByException : Seat::kLeft;
  own.left.store(left, std::memory_order_release);
  wake(own.progress);
  try {
    for (const int rank : far_) {
      world_->tell(
          in_world(rank),
          {.kind = Letter::Kind::kLeft, .channel = channel_, .left = left, .issued = issued});
    }
  } catch (...) {
    // No memory for a letter: who waits for this rank has a timeout.
  }
}

void ProcessGroup::abort(int rank, std::string_view reason) noexcept {
  world_->abort(in_world(rank), reason);
}

std::unique_ptr<Communicator> make_process_communicator(std::shared_ptr<ProcessWorld> world) {
  std::vector<int> members(static_cast<std::size_t>(world->size()));
  std::iota(members.begin(), members.end(), 0);
  const int rank = world->rank();
  return std::make_unique<collective::GroupCommunicator>(
      std::make_shared<ProcessGroup>(std::move(world), 0, std::move(members), rank, ""), rank);
}

}  // namespace zero3::process
