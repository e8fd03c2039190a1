#include "local/local_group.h"

#include <algorithm>
#include <utility>

#include <zero3/error.h>
#include "group_communicator.h"

namespace zero3::local {
LocalGroup::LocalGroup(std::shared_ptr<World> world, std::vector<int> members, std::string name)
    : Group(std::move(members), std::move(name)),
      world_(std::move(world)),
      departed_(static_cast<std::size_t>(size()), 0),
      ended_(static_cast<std::size_t>(size())) {
  for (Slot& slot : slots_) {
    slot.calls.assign(departed_.size(), nullptr);
    slot.progress.assign(departed_.size(), 0);
  }
}

void LocalGroup::arrive(const Call& call) {
  Lock lock(world_->mutex);
  if (world_->failed()) leave(lock, call);
  Slot& slot = slot_of(call);
  if (slot.sequence != call.sequence) {
    slot.sequence = call.sequence;
    std::fill(slot.calls.begin(), slot.calls.end(), nullptr);
    std::fill(slot.progress.begin(), slot.progress.end(), 0);
    slot.reached.fill(0);
  }
  check_agreement(slot, call);
  if (world_->failed()) leave(lock, call);
  slot.calls[static_cast<std::size_t>(call.rank)] = &call;
  contribute(slot, call.rank, 0);
  for (int rank = 0; rank < size(); ++rank) {
    if (ended_[static_cast<std::size_t>(rank)].issued <= call.sequence) fail_for_ended(slot, rank);
  }
  if (world_->failed()) leave(lock, call);
}

void LocalGroup::check_agreement(const Slot& slot, const Call& call) {
  const auto other = std::find_if(slot.calls.begin(), slot.calls.end(),
                                  [](const Call* arrived) { return arrived != nullptr; });
  if (other == slot.calls.end() || (*other)->header == call.header) return;
  std::vector<int> others;
  for (const Call* arrived : slot.calls) {
    if (arrived != nullptr) others.push_back(in_world(arrived->rank));
  }
  world_->fail(mismatch(call, others, (*other)->header));
}

void LocalGroup::fail_for_ended(const Slot& slot, int rank) {
  std::vector<int> waiting;
  const Call* example = nullptr;
  for (const Call* arrived : slot.calls) {
    if (arrived == nullptr) continue;
    waiting.push_back(in_world(arrived->rank));
    example = arrived;
  }
  const auto& [issued, by_exception] = ended_[static_cast<std::size_t>(rank)];
  world_->fail(ended(rank, issued, by_exception, waiting, *example));
}

void LocalGroup::work(const Call& call, int step) {
  Lock lock(world_->mutex);
  if (world_->failed()) leave(lock, call);
  Slot& slot = slot_of(call);
  ++slot.working;
  lock.unlock();
  std::exception_ptr error;
  try {
    std::vector<const void*> sources;
    for (const Call* peer : slot.calls) sources.push_back(peer->source);
    const collective::Step& part = call.steps[static_cast<std::size_t>(step)];
    run_in_place(part, call.rank, sources);
    if (part.finish) part.finish(call);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  --slot.working;
  if (world_->failed()) world_->changed.notify_all();
  if (error != nullptr) {
    world_->fail(step_failed(call, error));
    wait_for_workers(lock, call);
    std::rethrow_exception(error);
  }
  contribute(slot, call.rank, step + 1);
}

void LocalGroup::contribute(Slot& slot, int rank, int level) {
  slot.progress[static_cast<std::size_t>(rank)] = level + 1;
  if (++slot.reached[static_cast<std::size_t>(level)] == size()) {
    world_->changed.notify_all();
    if (level > 0) slot.children.clear();
  }
}

void LocalGroup::depart(const Call& call) {
  const Lock lock(world_->mutex);
  departed_[static_cast<std::size_t>(call.rank)] = call.sequence + 1;
  if (waiting_for_turn_ > 0) world_->changed.notify_all();
}

void LocalGroup::skip(const Call& call, const std::exception_ptr& error) noexcept {
  Lock lock(world_->mutex);
  if (!world_->failed()) world_->fail(stream_failed(call, error));
  wait_for_workers(lock, call);
}

bool LocalGroup::has_passed(const Call& call, int level) {
  if (level == kTurn) return departed_[static_cast<std::size_t>(call.rank)] == call.sequence;
  return slot_of(call).reached[static_cast<std::size_t>(level)] == size();
}

bool LocalGroup::passed(const Call& call, int level) {
  Lock lock(world_->mutex);
  if (has_passed(call, level)) return true;
  if (world_->failed()) leave(lock, call);
  return false;
}

void LocalGroup::await(const Call& call, int level) {
  Lock lock(world_->mutex);
  const auto settled = [&] { return has_passed(call, level) || world_->failed(); };
  if (level == kTurn) {
    // Without a limit of its own: a peer that waits for this rank has one.
    ++waiting_for_turn_;
    world_->changed.wait(lock, settled);
    --waiting_for_turn_;
  } else if (!settled()) {
    int& waits = world_->waits[in_world(call.rank)];
    ++waits;
    if (!world_->changed.wait_for(lock, world_->timeout(), settled)) {
      fail_late(lock, call, level, settled);
    }
    --waits;
  }
  if (!has_passed(call, level)) leave(lock, call);
}

void LocalGroup::fail_late(Lock& lock, const Call& call, int level,
                           const std::function<bool()>& settled) {
  const auto waits = [&](int rank) { return world_->waits[rank] > 0; };
  const auto overdue = [&] {
    std::vector<int> ranks = absent_from(slot_of(call), level);
    std::erase_if(ranks, waits);
    return ranks;
  };
  std::vector<int> ranks = overdue();
  if (ranks.empty()) {
    if (world_->changed.wait_for(lock, collective::kTimeToSpeak, settled)) return;
    ranks = overdue();
    if (ranks.empty()) ranks = absent_from(slot_of(call), level);
  }
  Failure failure = too_late(call, level, ranks, world_->timeout());
  for (const int rank : ranks) {
    if (waits(rank)) failure.message += collective::waits_itself(rank);
  }
  world_->fail(failure);
}

void LocalGroup::wait_for_workers(Lock& lock, const Call& call) {
  const Slot& slot = slot_of(call);
  const bool arrived =
      slot.sequence == call.sequence && slot.calls[static_cast<std::size_t>(call.rank)] == &call;
  if (!arrived) return;
  world_->changed.wait(lock, [&] { return slot.working == 0; });
}

void LocalGroup::leave(Lock& lock, const Call& call) {
  wait_for_workers(lock, call);
  throw error(call, *world_->failure());
}

std::vector<int> LocalGroup::absent_from(const Slot& slot, int level) const {
  std::vector<int> absent;
  for (std::size_t rank = 0; rank < members().size(); ++rank) {
    if (slot.progress[rank] <= level) absent.push_back(in_world(static_cast<int>(rank)));
  }
  return absent;
}

std::string LocalGroup::describe(const Call& call, int level) {
  const Lock lock(world_->mutex);
  if (level == kTurn) return description(call, level, {});
  return description(call, level, absent_from(slot_of(call), level));
}

std::unique_ptr<Communicator> LocalGroup::child(const Call& call) {
  std::shared_ptr<LocalGroup> group;
  {
    const Lock lock(world_->mutex);
    Slot& slot = slot_of(call);
    if (slot.children.empty()) slot.children = make_children(slot);
    group = slot.children.at(call.color);
  }
  const int own = in_world(call.rank);
  const auto place = std::find(group->members().begin(), group->members().end(), own);
  const auto rank = static_cast<int>(place - group->members().begin());
  return make_end(std::move(group), rank);
}

std::map<int, std::shared_ptr<LocalGroup>> LocalGroup::make_children(const Slot& slot) const {
  std::map<int, std::vector<std::pair<int, int>>> ordered;  // (key, rank) by color
  for (const Call* call : slot.calls) ordered[call->color].emplace_back(call->key, call->rank);
  std::map<int, std::shared_ptr<LocalGroup>> children;
  for (auto& [color, ranks] : ordered) {
    std::sort(ranks.begin(), ranks.end());
    std::vector<int> members;
    for (const auto& [key, rank] : ranks) members.push_back(in_world(rank));
    std::string name = concat("communicator ", ++world_->splits, " (", text_of_ranks(members), ")");
    children.emplace(color,
                     std::make_shared<LocalGroup>(world_, std::move(members), std::move(name)));
  }
  return children;
}

void LocalGroup::end(int rank, std::int64_t issued, bool by_exception) noexcept {
  const Lock lock(world_->mutex);
  ended_[static_cast<std::size_t>(rank)] = {issued, by_exception};
  if (world_->failed()) return;
  for (const Slot& slot : slots_) {
    if (slot.sequence == issued && slot.reached[0] > 0) fail_for_ended(slot, rank);
  }
}

void LocalGroup::abort(int rank, std::string_view reason) noexcept {
  world_->abort(in_world(rank), reason);
}

std::unique_ptr<Communicator> make_end(std::shared_ptr<LocalGroup> group, int rank) {
  if (group->size() == 1) return make_self_end(group->world(), group->members().front());
  return std::make_unique<collective::GroupCommunicator>(std::move(group), rank);
}

}  // namespace zero3::local
