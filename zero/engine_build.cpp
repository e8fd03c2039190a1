#include <algorithm>
#include <cmath>
#include <set>
#include <thread>
#include <utility>

#include <zero3/copy.h>
#include <zero3/error.h>
#include "engine_state.h"
#include "fingerprint.h"
#include "init.h"

namespace zero3 {

Engine::State::State(Device& device_, Communicator& communicator_, EngineOptions options_)
    : device(device_), communicator(communicator_), options(std::move(options_)) {
  ZERO3_CHECK(options.micro_steps >= 1, "EngineOptions::micro_steps is ", options.micro_steps,
              "; give 1 or more");
  ZERO3_CHECK(options.prefetch >= 0, "EngineOptions::prefetch is ", options.prefetch,
              "; give 0 or more");
  ZERO3_CHECK(options.grad_slots >= 1, "EngineOptions::grad_slots is ", options.grad_slots,
              "; give 1 or more");
  int exponent = 0;
  ZERO3_CHECK(std::frexp(options.loss_scale, &exponent) == 0.5F, "EngineOptions::loss_scale is ",
              options.loss_scale, "; give a positive power of two");
  ZERO3_CHECK(options.clip >= 0, "EngineOptions::clip is ", options.clip,
              "; give 0 (off) or a positive norm");
  for (const DType dtype : {options.precision.param, options.precision.reduce}) {
    ZERO3_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16, "precision ",
                dtype, " is not a dtype of parameters or gradients; choose fp32, bf16 or fp16");
  }
  for (const OptimizerGroup& hyper : options.optimizer_groups) {
    ZERO3_CHECK(hyper.beta1 >= 0 && hyper.beta1 < 1 && hyper.beta2 >= 0 && hyper.beta2 < 1,
                "an optimizer group has beta1 ", hyper.beta1, " and beta2 ", hyper.beta2,
                "; both have to be in [0, 1)");
  }
  compute = device.make_stream({.name = "compute", .threads = device.threads()});
  gather = device.make_stream({.name = "gather"});
  reduce = device.make_stream({.name = "reduce"});
}

std::vector<GroupId> Engine::State::gathers_in_order() const {
  if (!gather_order.empty()) return gather_order;
  const int count = static_cast<int>(groups.size());
  std::vector<GroupId> order;
  order.reserve(2 * groups.size());
  for (int i = 0; i < count; ++i) order.push_back({i});
  for (int i = count; i-- > 0;) order.push_back({i});
  return order;
}

std::vector<GroupId> Engine::State::gradients_in_order() const {
  if (!gradient_order.empty()) return gradient_order;
  std::vector<GroupId> order;
  for (int i = static_cast<int>(groups.size()); i-- > 0;) {
    for (int use = 0; use < groups[static_cast<std::size_t>(i)].spec.uses; ++use)
      order.push_back({i});
  }
  return order;
}

Bytes Engine::State::gathered_peak(int prefetch, Bytes limit) const {
  return Gatherer::peak(groups, gathers_in_order(), communicator.world_size(), options, prefetch,
                        limit);
}

Bytes Engine::State::gathered_limit() const {
  if (options.gathered_limit == Bytes(0)) return gathered_peak(options.prefetch, Bytes(INT64_MAX));
  const Bytes least = gathered_peak(0, Bytes(INT64_MAX));
  ZERO3_CHECK(options.gathered_limit >= least, "EngineOptions::gathered_limit is ",
              options.gathered_limit.count(), " bytes and the order of use needs at least ",
              least.count(), " (", least, ") on rank ", communicator.rank(),
              "; raise it, or register smaller groups");
  return options.gathered_limit;
}

GroupId Engine::add_group(GroupSpec spec) {
  State& s = *state_;
  ZERO3_CHECK(!s.built, "group '", spec.name, "' is added after build()");
  ZERO3_CHECK(spec.uses >= 1, "group '", spec.name, "' with ", spec.uses, " uses; give 1 or more");
  std::set<std::string> names;
  for (const GroupSpec& other : s.specs) {
    ZERO3_CHECK(other.name != spec.name, "group '", spec.name, "' is registered twice");
    for (const ParamSpec& param : other.params) names.insert(param.name);
  }
  Elements offset = parameter_count();
  std::vector<Elements> offsets;
  for (const ParamSpec& param : spec.params) {
    ZERO3_CHECK(names.insert(param.name).second, "parameter '", param.name,
                "' is registered twice");
    for (const std::int64_t extent : param.shape) {
      ZERO3_CHECK(extent >= 0, "parameter '", param.name, "' has the extent ", extent);
    }
    ZERO3_CHECK(param.optimizer_group >= 0 && static_cast<std::size_t>(param.optimizer_group) <
                                                  s.options.optimizer_groups.size(),
                "parameter '", param.name, "' names optimizer group ", param.optimizer_group,
                "; there are ", s.options.optimizer_groups.size());
    const DType dtype = param.dtype.value_or(DType::kF32);
    ZERO3_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16,
                "parameter '", param.name, "' cannot be gathered in ", dtype,
                "; choose fp32, bf16 or fp16");
    offsets.push_back(offset);
    offset += param.size();
  }
  s.specs.push_back(spec);
  s.groups.push_back(make_param_group(std::move(spec), s.options, world_size()));
  s.groups.back().global_offsets = std::move(offsets);
  return {static_cast<int>(s.groups.size()) - 1};
}

void Engine::expect_order(std::vector<GroupId> gathers, std::vector<GroupId> gradients) {
  ZERO3_CHECK(!state_->built, "expect_order() after build(), which planned by it");
  for (const GroupId id : gathers) static_cast<void>(state_->group(id));
  std::vector<int> uses(state_->groups.size(), 0);
  for (const GroupId id : gradients) {
    const GroupSpec& spec = state_->group(id).spec;
    ZERO3_CHECK(++uses[static_cast<std::size_t>(id.index)] <= spec.uses, "gradients of group '",
                spec.name, "' are expected more than ", spec.uses,
                " times; declare as many uses in its GroupSpec");
  }
  state_->gather_order = std::move(gathers);
  state_->gradient_order = std::move(gradients);
}

MemoryPlan Engine::plan() const {
  const State& s = *state_;
  MemoryPlan plan;
  for (const ParamGroup& group : s.groups) {
    for (const SubGroup& sub : group.sub_groups) {
      const Bytes shard = aligned(bytes_of(sub.layout.shard, DType::kF32));
      plan[MemoryTag::kShards] += shard;
      if (!sub.layout.trainable) continue;
      plan[MemoryTag::kGrads] += shard;
      if (s.options.optimizer == OptimizerKind::kAdamW) plan[MemoryTag::kOptimizer] += shard * 2;
    }
  }
  plan[MemoryTag::kGathered] = s.gathered_peak(s.options.prefetch, s.gathered_limit());
  plan[MemoryTag::kGrads] +=
      GradReducer::slot_peak(s.groups, s.gradients_in_order(), world_size(), s.options);
  plan[MemoryTag::kWorkspace] =
      GlobalNorm::workspace_bytes(s.groups, world_size(), s.options.micro_steps);
  return plan;
}

void Engine::State::allocate() {
  for (ParamGroup& group : groups) {
    for (SubGroup& sub : group.sub_groups) {
      const auto shard = [&](MemoryTag tag) {
        Buffer buffer(sub.layout.shard, DType::kF32, tag, *compute);
        fill_zero(buffer.view(), *compute);
        return buffer;
      };
      sub.master = shard(MemoryTag::kShards);
      if (!sub.layout.trainable) continue;
      sub.grad = shard(MemoryTag::kGrads);
      if (options.optimizer != OptimizerKind::kAdamW) continue;
      sub.m = shard(MemoryTag::kOptimizer);
      sub.v = shard(MemoryTag::kOptimizer);
    }
  }
}

void Engine::State::draw_first_weights() {
  // Large enough that threads pay, small enough not to show in the process's peak.
  constexpr std::int64_t kPiece = 1 << 18;
  std::vector<float> values(static_cast<std::size_t>(kPiece * device.threads()));
  const auto draw = [&](TensorView target, const ParamSpec& param, std::int64_t first) {
    {
      std::vector<std::jthread> workers;
      for (std::int64_t from = 0; from < target.count(); from += kPiece) {
        const auto count = static_cast<std::size_t>(std::min(kPiece, target.count() - from));
        const std::span<float> piece(values.data() + from, count);
        workers.emplace_back(
            [&, piece, from] { initial_values(piece, param, first + from, options.seed); });
      }
    }
    copy_from_host(target, values.data(), *compute);
    compute->synchronize();
  };
  const int rank = communicator.rank();
  for (const ParamGroup& group : groups) {
    for (const SubGroup& sub : group.sub_groups) {
      for (std::size_t i = 0; i < sub.layout.params.size(); ++i) {
        const ParamSpec& param = group.spec.params[static_cast<std::size_t>(sub.layout.params[i])];
        const ParamPart part = sub.layout.part(i, param.size(), rank);
        const auto piece = static_cast<std::int64_t>(values.size());
        for (std::int64_t done = 0; done < part.size.count(); done += piece) {
          const std::int64_t count = std::min(piece, part.size.count() - done);
          draw(sub.master.view().slice(part.in_shard.count() + done, count), param,
               part.in_param.count() + done);
        }
      }
    }
  }
  // What is all padding on this rank was only zeroed; from here on every gather may read it.
  compute->synchronize();
}

void Engine::build() {
  State& s = *state_;
  ZERO3_CHECK(!s.built, "build() is called twice");
  compare_registrations(registration_text(s.groups, s.options), s.communicator, *s.gather);
  s.reduce_communicator = s.communicator.duplicate(*s.gather);
  s.allocate();
  s.gatherer = std::make_unique<Gatherer>(
      Gatherer::Config{*s.compute, *s.gather, s.communicator, s.groups, s.options.prefetch,
                       s.options.keep_gathered_below, s.gathered_limit()});
  s.reducer = std::make_unique<GradReducer>(
      GradReducer::Config{*s.compute, *s.reduce, *s.reduce_communicator, s.groups, s.options},
      s.gradients_in_order());
  s.norm = std::make_unique<GlobalNorm>(
      GlobalNorm::Config{*s.compute, *s.gather, s.communicator, s.groups, s.options.micro_steps});
  s.optimizer = std::make_unique<ShardedOptimizer>(s.groups, s.options, rank(), *s.compute);
  s.training_plan = PrefetchPlan(s.gathers_in_order());
  s.draw_first_weights();
  s.built = true;
}

}  // namespace zero3
