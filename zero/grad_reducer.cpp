#include "grad_reducer.h"

#include <algorithm>
#include <utility>

#include <zero3/copy.h>
#include <zero3/device.h>
#include <zero3/error.h>

namespace zero3 {

GradReducer::GradReducer(const Config& config, const std::vector<GroupId>& order)
    : config_(config), order_(order_of_reductions(config.groups, order)) {}

std::vector<std::size_t> GradReducer::order_of_reductions(const std::deque<ParamGroup>& groups,
                                                          const std::vector<GroupId>& uses) {
  std::vector<std::size_t> order;
  std::vector<bool> listed(groups.size(), false);
  for (auto use = uses.rbegin(); use != uses.rend(); ++use) {
    const auto index = static_cast<std::size_t>(use->index);
    if (groups[index].trainable() && !listed[index]) order.push_back(index);
    listed[index] = true;
  }
  std::reverse(order.begin(), order.end());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].trainable() && !listed[i]) order.push_back(i);
  }
  return order;
}

void GradReducer::begin_micro_step(int index) {
  micro_step_ = index;
  next_ = due_ = 0;
  for (ParamGroup& group : config_.groups) {
    group.uses = group.uses_over = 0;
    group.reduced = false;
  }
}

void GradReducer::open(ParamGroup& group) {
  const int rank = config_.communicator.rank();
  ZERO3_CHECK(group.uses < group.spec.uses, "gradients of group '", group.spec.name, "' on rank ",
              rank, " are asked for more than ", group.spec.uses,
              " times in one micro-step; declare uses = ", group.uses + 1, " in its GroupSpec");
  ZERO3_CHECK(!group.reduced, "gradients of group '", group.spec.name, "' on rank ", rank,
              " are asked for after those of '", latest_->spec.name,
              "', which are expected later; give the order of the backward with "
              "Engine::expect_order()");
  if (group.trainable()) {
    if (group.uses + 1 == group.spec.uses) {
      make_due(group, place_of(group));
      advance();
    }
    if (!group.grads_open) prepare(group);
  }
  ++group.uses;
}

void GradReducer::prepare(ParamGroup& group) {
  if (!in_place() && !keeps_full()) {
    retire(group);
    retire(static_cast<std::size_t>(config_.options.grad_slots) - 1);
  }
  for (SubGroup& sub : group.sub_groups) {
    if (!sub.layout.trainable) continue;
    if (!in_place()) {
      sub.slot = Buffer(sub.layout.padded(config_.communicator.world_size()), DType::kF32,
                        MemoryTag::kGrads, config_.compute);
    }
    fill_zero(in_place() ? sub.grad.view() : sub.slot.view(), config_.compute);
  }
  group.grads_lease = config_.compute.device().blocks().acquire();
  group.grads_open = true;
}

TensorView GradReducer::view(const ParamGroup& group, int param) const {
  group.check_index(param);
  const ParamPlace place = group.layout.places[static_cast<std::size_t>(param)];
  const SubGroup& sub = group.sub_groups[static_cast<std::size_t>(place.sub_group)];
  if (!sub.layout.trainable) return {};
  const Buffer& full = sub.slot.empty() ? sub.grad : sub.slot;
  const TensorView part =
      full.view().slice(place.offset, group.spec.params[static_cast<std::size_t>(param)].size());
  return {part.data(), part.size(), part.dtype(), part.device(), group.grads_lease};
}

void GradReducer::close(ParamGroup& group) {
  group.used_in_step = true;
  if (++group.uses_over == group.spec.uses && group.trainable())
    make_due(group, place_of(group) + 1);
  advance();
}

void GradReducer::make_due(const ParamGroup& group, std::size_t places) {
  if (places < due_) return;
  due_ = places;
  latest_ = &group;
}

std::size_t GradReducer::place_of(const ParamGroup& group) const {
  const auto place = std::find_if(order_.begin(), order_.end(), [&](std::size_t index) {
    return &config_.groups[index] == &group;
  });
  return static_cast<std::size_t>(place - order_.begin());
}

void GradReducer::advance() {
  if (keeps_full() && !last_micro_step()) return;
  for (; next_ < due_; ++next_) {
    ParamGroup& group = config_.groups[order_[next_]];
    if (group.uses > group.uses_over) return;  // still being written
    if (!group.grads_open) prepare(group);
    reduce(group);
  }
}

void GradReducer::reduce(ParamGroup& group) {
  config_.compute.device().blocks().release(std::exchange(group.grads_lease, BlockRef()));
  group.reduced = true;
  group.grads_open = false;
  config_.reduce.wait(config_.compute.record());
  const Into into = micro_step_ == 0 || keeps_full() ? Into::kReplace : Into::kAccumulate;
  for (SubGroup& sub : group.sub_groups) {
    if (!sub.layout.trainable) continue;
    const Buffer& full = sub.slot.empty() ? sub.grad : sub.slot;
    config_.communicator.reduce_scatter(sub.grad.view(), full.view(),
                                        {config_.options.precision.reduce, into}, group.spec.name,
                                        config_.reduce);
    if (!sub.slot.empty()) sub.slot.set_home(config_.reduce);
  }
  if (!in_place()) in_flight_.push_back(&group);
}

void GradReducer::retire(std::size_t keep) noexcept {
  while (in_flight_.size() > keep) retire(*in_flight_.front());
}

void GradReducer::retire(ParamGroup& group) noexcept {
  if (std::erase(in_flight_, &group) == 0) return;
  for (SubGroup& sub : group.sub_groups) sub.slot.reset();
}

void GradReducer::end_micro_step() {
  for (const ParamGroup& group : config_.groups) {
    ZERO3_CHECK(group.uses == group.uses_over, "gradients of group '", group.spec.name,
                "' on rank ", config_.communicator.rank(),
                " are held beyond the end of the micro-step; let go of the handle first");
  }
  due_ = order_.size();
  advance();
}

void GradReducer::finish() {
  retire(std::size_t{0});
  config_.compute.wait(config_.reduce.record());
  micro_step_ = -1;
}

void GradReducer::drop_all() noexcept {
  in_flight_.clear();
  for (ParamGroup& group : config_.groups) {
    for (SubGroup& sub : group.sub_groups) sub.slot.reset();
    config_.compute.device().blocks().release(std::exchange(group.grads_lease, BlockRef()));
    group.grads_open = group.reduced = group.used_in_step = false;
    group.uses = group.uses_over = 0;
  }
  micro_step_ = -1;
}

Bytes GradReducer::slot_peak(const std::deque<ParamGroup>& groups,
                             const std::vector<GroupId>& order, int world_size,
                             const EngineOptions& options) {
  const auto bytes = [&](std::size_t i) { return groups[i].slot_bytes(world_size); };
  Bytes live, peak;
  if (options.accumulation == Accumulation::kKeepFull) {
    for (std::size_t i = 0; i < groups.size(); ++i) live += bytes(i);
    return world_size == 1 ? Bytes(0) : live;
  }
  const std::vector<std::size_t> reductions = order_of_reductions(groups, order);
  std::deque<std::size_t> in_flight;
  std::vector<bool> is_open(groups.size());
  const auto open = [&](std::size_t i) {
    if (is_open[i]) return;
    is_open[i] = true;
    if (std::erase(in_flight, i) > 0) live -= bytes(i);
    while (in_flight.size() >= static_cast<std::size_t>(options.grad_slots)) {
      live -= bytes(in_flight.front());
      in_flight.pop_front();
    }
    live += bytes(i);
    peak = std::max(peak, live);
  };
  // The second micro-step with slots begins with those that the first left on their way; all later
  // ones do as well.
  const int with_slots = options.micro_steps - (world_size == 1 ? 1 : 0);
  for (int round = 0; round < std::min(2, with_slots); ++round) {
    std::vector<int> uses(groups.size(), 0);
    std::size_t next = 0;
    const auto reduce_until = [&](std::size_t place) {
      for (; next < place; ++next) {
        open(reductions[next]);
        is_open[reductions[next]] = false;
        in_flight.push_back(reductions[next]);
      }
    };
    for (const GroupId id : order) {
      const auto i = static_cast<std::size_t>(id.index);
      const auto place = std::find(reductions.begin(), reductions.end(), i);
      if (place == reductions.end() || uses[i] == groups[i].spec.uses) continue;
      const auto before = static_cast<std::size_t>(place - reductions.begin());
      const bool last = ++uses[i] == groups[i].spec.uses;
      if (last) reduce_until(before);
      open(i);
      if (last) reduce_until(before + 1);
    }
    reduce_until(reductions.size());
  }
  return peak;
}

}  // namespace zero3
