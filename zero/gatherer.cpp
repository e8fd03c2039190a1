#include "gatherer.h"

#include <algorithm>
#include <utility>

#include <zero3/device.h>
#include <zero3/error.h>

namespace zero3 {

using State = ParamGroup::State;

Bytes Gatherer::bytes_of_group(const ParamGroup& group) const {
  return group.gathered_bytes(config_.communicator.world_size());
}

void Gatherer::check_use() const {
  if (misuse_ != nullptr) std::rethrow_exception(misuse_);
}

void Gatherer::follow(PrefetchPlan* plan) {
  const std::scoped_lock lock(mutex_);
  drop_unheld();
  plan_ = plan;
  if (plan_ != nullptr) plan_->begin();
  check_use();
}

void Gatherer::acquire(GroupId id) {
  const std::scoped_lock lock(mutex_);
  check_use();
  ParamGroup& group = group_of(id);
  if (!owned()) {
    ZERO3_CHECK(group.holders > 0, "group '", group.spec.name, "' on rank ",
                config_.communicator.rank(),
                " is gathered from a second thread; let the thread that built the engine gather it "
                "first, then share it");
    ++group.guests;
    return;
  }
  if (group.holders == 0) bring(id, group);
  ++group.holders;
}

void Gatherer::bring(GroupId id, ParamGroup& group) {
  if (plan_ != nullptr) plan_->used(id);
  if (group.state == State::kSharded) {
    make_room(group);
    issue(group);
  }
  if (group.ready) config_.compute.wait(*group.ready);
  group.ready.reset();
  group.lease = config_.compute.device().blocks().acquire();
  group.state = State::kHeld;
  try {
    prefetch();
  } catch (...) {
    release_held(group);
    throw;
  }
}

void Gatherer::release(GroupId id) noexcept {
  const std::scoped_lock lock(mutex_);
  ParamGroup& group = group_of(id);
  if (!owned() && group.guests > 0) {
    --group.guests;
    return;
  }
  if (group.holders == 0 || --group.holders > 0) return;
  if (owned() && group.guests == 0) return release_held(group);
  // The copy stays until drop_all(): the other thread may be reading it.
  misuse_ = std::make_exception_ptr(UsageError(
      concat("group '", group.spec.name, "' on rank ", config_.communicator.rank(),
             owned() ? " is let go while another thread still shares it; end that thread's handle "
                       "first"
                     : " is let go by another thread than the one that gathered it; destroy a "
                       "handle where it was made")));
}

void Gatherer::release_held(ParamGroup& group) noexcept {
  config_.compute.device().blocks().release(std::exchange(group.lease, BlockRef()));
  if (kept(group)) {
    group.state = State::kKept;
  } else {
    let_go(group);
  }
}

TensorView Gatherer::view(GroupId id, int param) const {
  const std::scoped_lock lock(mutex_);
  const ParamGroup& group = group_of(id);
  group.check_index(param);
  ZERO3_CHECK(group.holders > 0, "group '", group.spec.name, "' is not gathered on rank ",
              config_.communicator.rank());
  const ParamPlace place = group.layout.places[static_cast<std::size_t>(param)];
  const SubGroup& sub = group.sub_groups[static_cast<std::size_t>(place.sub_group)];
  const Buffer& full = sub.master_is_full ? sub.master : sub.gathered;
  const TensorView part =
      full.view().slice(place.offset, group.spec.params[static_cast<std::size_t>(param)].size());
  return {part.data(), part.size(), part.dtype(), part.device(), group.lease};
}

void Gatherer::issue(ParamGroup& group) {
  const int world_size = config_.communicator.world_size();
  try {
    for (SubGroup& sub : group.sub_groups) {
      if (sub.master_is_full) continue;
      sub.gathered = Buffer(sub.layout.padded(world_size), sub.layout.dtype, MemoryTag::kGathered,
                            config_.gather);
    }
  } catch (...) {
    for (SubGroup& sub : group.sub_groups) sub.gathered.reset();
    throw;
  }
  group.state = State::kOnItsWay;
  live_ += bytes_of_group(group);
  if (masters_ready_) config_.gather.wait(*masters_ready_);
  masters_ready_.reset();
  for (const SubGroup& sub : group.sub_groups) {
    const Buffer& full = sub.master_is_full ? sub.master : sub.gathered;
    config_.communicator.all_gather(full.view(), sub.master.view(), group.spec.name,
                                    config_.gather);
  }
  group.ready = config_.gather.record();
}

void Gatherer::let_go(ParamGroup& group) noexcept {
  // A copy that was on its way is last used by its own gather, the others by what compute has
  // enqueued.
  Stream& last = group.state == State::kOnItsWay ? config_.gather : config_.compute;
  for (SubGroup& sub : group.sub_groups) {
    if (sub.gathered.empty()) continue;
    sub.gathered.set_home(last);
    sub.gathered.reset();
  }
  group.state = State::kSharded;
  group.ready.reset();
  live_ -= bytes_of_group(group);
}

void Gatherer::drop_unheld() noexcept {
  for (ParamGroup& group : config_.groups) {
    if (group.state == State::kOnItsWay && !kept(group)) let_go(group);
  }
}

void Gatherer::make_room(const ParamGroup& group) {
  const Bytes wanted = bytes_of_group(group);
  if (live_ + wanted > config_.limit) drop_unheld();
  if (live_ + wanted <= config_.limit) return;
  std::string held;
  for (const ParamGroup& other : config_.groups) {
    if (other.state != State::kSharded)
      held += concat(held.empty() ? "'" : ", '", other.spec.name, "'");
  }
  throw UsageError(concat(
      "rank ", config_.communicator.rank(), ": gathering group '", group.spec.name, "' (", wanted,
      ") while ", held.empty() ? "nothing" : held, " is held needs ", (live_ + wanted).count(),
      " bytes of gathered parameters and the bound is ", config_.limit.count(),
      "; release groups first, or raise gathered_limit to at least ", (live_ + wanted).count()));
}

void Gatherer::prefetch() {
  if (plan_ == nullptr) return;
  int ahead = 0;
  for (const GroupId id : plan_->upcoming()) {
    if (ahead == config_.prefetch) return;
    ParamGroup& group = group_of(id);
    if (!kept(group)) ++ahead;
    if (group.state != State::kSharded) continue;
    if (live_ + bytes_of_group(group) > config_.limit) return;
    issue(group);
  }
}

void Gatherer::check_none_held(std::string_view what) const {
  const std::scoped_lock lock(mutex_);
  for (const ParamGroup& group : config_.groups) {
    ZERO3_CHECK(group.state != State::kHeld, what, " on rank ", config_.communicator.rank(),
                " while group '", group.spec.name,
                "' is gathered, whose copy would be out of date; let go of its handle first");
  }
}

void Gatherer::weights_changed() {
  const std::scoped_lock lock(mutex_);
  for (ParamGroup& group : config_.groups) {
    if (group.state == State::kKept || group.state == State::kOnItsWay) let_go(group);
  }
  masters_ready_ = config_.compute.record();
}

void Gatherer::drop_all() noexcept {
  const std::scoped_lock lock(mutex_);
  for (ParamGroup& group : config_.groups) {
    config_.compute.device().blocks().release(std::exchange(group.lease, BlockRef()));
    group.holders = group.guests = 0;
    if (group.state != State::kSharded) let_go(group);
  }
  misuse_ = nullptr;
}

Bytes Gatherer::peak(const std::deque<ParamGroup>& groups, const std::vector<GroupId>& order,
                     int world_size, const EngineOptions& options, int prefetch, Bytes limit) {
  std::vector<bool> present(groups.size(), false);
  Bytes live, highest;
  const auto bytes = [&](std::size_t i) { return groups[i].gathered_bytes(world_size); };
  const auto stays = [&](std::size_t i) { return groups[i].size() < options.keep_gathered_below; };
  const auto add = [&](std::size_t i) {
    present[i] = true;
    live += bytes(i);
    highest = std::max(highest, live);
  };
  const auto remove = [&](std::size_t i) {
    if (!present[i] || stays(i)) return;
    present[i] = false;
    live -= bytes(i);
  };
  // From the second micro-step on the groups that stay are there from its beginning.
  for (int round = 0; round < std::min(2, options.micro_steps); ++round) {
    for (auto use = order.begin(); use != order.end(); ++use) {
      const auto current = static_cast<std::size_t>(use->index);
      if (!present[current]) {
        if (live + bytes(current) > limit) {
          for (std::size_t i = 0; i < groups.size(); ++i) remove(i);
        }
        add(current);
      }
      int ahead = 0;
      for (auto next = use + 1; next != order.end() && ahead < prefetch; ++next) {
        const auto i = static_cast<std::size_t>(next->index);
        if (!stays(i)) ++ahead;
        if (present[i]) continue;
        if (live + bytes(i) > limit) break;
        add(i);
      }
      remove(current);
    }
  }
  return highest;
}

}  // namespace zero3
