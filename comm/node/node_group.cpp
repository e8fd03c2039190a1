#include "node/node_group.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include <zero3/internal/shared_place.h>
#include "in_place_communicator.h"

namespace zero3::node {
namespace {

using collective::Failure;

/// Within which a waiting rank notices a failure and a death.
constexpr std::chrono::milliseconds kSlice{50};

constexpr std::uint32_t base(std::int64_t sequence) {
  return static_cast<std::uint32_t>(sequence * 4);
}

}  // namespace

NodeGroup::NodeGroup(std::shared_ptr<NodeWorld> world, int channel, std::vector<int> members,
                     int rank, std::string name)
    : Group(std::move(members), std::move(name)),
      world_(std::move(world)),
      channel_(channel),
      rank_(rank) {
  for (int peer = 0; peer < size(); ++peer) {
    peers_.push_back({.group = nullptr, .rank = peer, .sequence = 0, .header = {}});
  }
  for (const Call& peer : peers_) views_.push_back(&peer);
}

Seat& NodeGroup::seat(int rank) const {
  return world_->board().seat(channel_, in_world(rank));
}

const Notice& NodeGroup::notice_of(int rank, const Call& call) const {
  return seat(rank).notices[call.sequence % 2];
}

void NodeGroup::advance(const Call& call, std::uint32_t done) {
  Seat& own = seat(rank_);
  own.progress.store(base(call.sequence) + done, std::memory_order_release);
  wake(own.progress);
}

bool NodeGroup::reached(int rank, const Call& call, int level) const {
  const std::uint32_t progress = seat(rank).progress.load(std::memory_order_acquire);
  const std::uint32_t needed = base(call.sequence) + static_cast<std::uint32_t>(level + 1);
  return static_cast<std::int32_t>(progress - needed) >= 0;
}

void NodeGroup::arrive(const Call& call) {
  throw_if_failed(call);
  Notice& notice = seat(rank_).notices[call.sequence % 2];
  notice.set(call.header);
  notice.file = 0;
  notice.color = call.color;
  notice.key = call.key;
  notice.next_channel = world_->next_channel;
  if (call.source != nullptr && call.header.bytes.count() > 0) {
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
}

void NodeGroup::work(const Call& call, int step) {
  throw_if_failed(call);
  try {
    for (Call& peer : peers_) {
      const Notice& notice = notice_of(peer.rank, call);
      peer.color = notice.color;
      peer.key = notice.key;
      peer.source = nullptr;
      if (peer.rank == rank_) {
        peer.source = call.source;
      } else if (notice.file != 0) {
        peer.source = world_->memory_of(in_world(peer.rank), notice);
      }
    }
    peers_[static_cast<std::size_t>(rank_)].group = call.group;
    peers_[static_cast<std::size_t>(rank_)].sequence = call.sequence;
    call.steps[static_cast<std::size_t>(step)].run(views_);
  } catch (...) {
    world_->board().fail(step_failed(call, std::current_exception()));
    peers_[static_cast<std::size_t>(rank_)].group = nullptr;
    throw;
  }
  peers_[static_cast<std::size_t>(rank_)].group = nullptr;
  advance(call, static_cast<std::uint32_t>(step) + 2);
}

void NodeGroup::depart(const Call& call) {
  advance(call, 4);
}

void NodeGroup::skip(const Call& call, const std::exception_ptr& error) noexcept {
  try {
    world_->board().fail(stream_failed(call, error));
  } catch (...) {
    world_->abort(in_world(rank_), "its stream has failed");
  }
}

bool NodeGroup::passed(const Call& call, int level) {
  if (level == kTurn) {
    if (reached(rank_, call, -1)) return true;
  } else if (absent_from(call, level).empty()) {
    if (level == 0) check_agreement(call);
    return true;
  }
  throw_if_failed(call);
  return false;
}

void NodeGroup::await(const Call& call, int level) {
  const auto deadline = std::chrono::steady_clock::now() + world_->timeout();
  const auto wait_for = [&](int rank) {
    Seat& peer = seat(rank);
    while (true) {
      const std::uint32_t seen = peer.progress.load(std::memory_order_acquire);
      if (reached(rank, call, level)) return;
      if (level != kTurn) check_left(call, rank);
      world_->check_processes();
      throw_if_failed(call);
      // A turn has no limit of its own: a peer that waits for this rank has one.
      if (level != kTurn && std::chrono::steady_clock::now() >= deadline) {
        const std::vector<int> absent = absent_from(call, level);
        Failure failure = too_late(call, level, absent, world_->timeout());
        for (const int one : absent) failure.message += world_->state_of(one);
        fail(call, failure);
      }
      sleep_on(peer.progress, seen, kSlice);
    }
  };
  if (level == kTurn) {
    wait_for(rank_);
    return;
  }
  for (int rank = 0; rank < size(); ++rank) wait_for(rank);
  if (level == 0) check_agreement(call);
}

void NodeGroup::check_agreement(const Call& call) {
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

void NodeGroup::check_left(const Call& call, int rank) {
  const Seat& peer = seat(rank);
  const std::uint32_t left = peer.left.load(std::memory_order_acquire);
  if (left == Seat::kSits || peer.issued > call.sequence) return;
  std::vector<int> waiting;
  for (int other = 0; other < size(); ++other) {
    if (reached(other, call, 0)) waiting.push_back(in_world(other));
  }
  fail(call, ended(rank, peer.issued, left == Seat::kLeftByException, waiting, call));
}

void NodeGroup::throw_if_failed(const Call& call) {
  if (!world_->board().failed()) return;
  throw error(call, *world_->board().failure());
}

void NodeGroup::fail(const Call& call, const Failure& failure) {
  world_->board().fail(failure);
  throw error(call, *world_->board().failure());
}

std::vector<int> NodeGroup::absent_from(const Call& call, int level) const {
  std::vector<int> absent;
  for (int rank = 0; rank < size(); ++rank) {
    if (!reached(rank, call, level)) absent.push_back(in_world(rank));
  }
  return absent;
}

std::string NodeGroup::describe(const Call& call, int level) {
  if (level == kTurn) return description(call, level, {});
  return description(call, level, absent_from(call, level));
}

std::unique_ptr<Communicator> NodeGroup::child(const Call& call) {
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
  return std::make_unique<collective::InPlaceCommunicator>(
      std::make_shared<NodeGroup>(world_, channel, std::move(members), own, std::move(name)), own);
}

void NodeGroup::end(int, std::int64_t issued, bool by_exception) noexcept {
  Seat& own = seat(rank_);
  own.issued = issued;
  own.left.store(by_exception ? Seat::kLeftByException : Seat::kLeft, std::memory_order_release);
  wake(own.progress);
}

void NodeGroup::abort(int rank, std::string_view reason) noexcept {
  world_->abort(in_world(rank), reason);
}

std::unique_ptr<Communicator> make_node_communicator(std::shared_ptr<NodeWorld> world) {
  std::vector<int> members(static_cast<std::size_t>(world->size()));
  std::iota(members.begin(), members.end(), 0);
  const int rank = world->rank();
  return std::make_unique<collective::InPlaceCommunicator>(
      std::make_shared<NodeGroup>(std::move(world), 0, std::move(members), rank, ""), rank);
}

}  // namespace zero3::node
