#include "sharded_optimizer.h"

#include <zero3/adamw.h>
#include <zero3/sgd.h>

namespace zero3 {

ShardedOptimizer::ShardedOptimizer(std::deque<ParamGroup>& groups, const EngineOptions& options,
                                   int rank, Stream& compute)
    : groups_(groups), options_(options), compute_(compute) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::size_t s = 0; s < groups_[g].sub_groups.size(); ++s) {
      if (groups_[g].sub_groups[s].layout.trainable) add_runs(g, s, rank);
    }
  }
}

void ShardedOptimizer::add_runs(std::size_t group_index, std::size_t sub_index, int rank) {
  const ParamGroup& group = groups_[group_index];
  const SubGroupLayout& layout = group.sub_groups[sub_index].layout;
  for (std::size_t i = 0; i < layout.params.size(); ++i) {
    const ParamSpec& param = group.spec.params[static_cast<std::size_t>(layout.params[i])];
    const ParamPart part = layout.part(i, param.size(), rank);
    if (part.size == Elements(0)) continue;
    Run* last = runs_.empty() ? nullptr : &runs_.back();
    // The padding between two parameters is zero in all four arrays and stays so.
    if (last != nullptr && last->group == group_index && last->sub_group == sub_index &&
        last->optimizer_group == param.optimizer_group) {
      last->size = part.in_shard + part.size - last->begin;
    } else {
      runs_.push_back({group_index, sub_index, param.optimizer_group, part.in_shard, part.size});
    }
  }
}

void ShardedOptimizer::step(double learning_rate, double grad_scale,
                            const std::vector<bool>& used) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (used[g]) ++groups_[g].updates;
  }
  for (const Run& run : runs_) {
    if (!used[run.group]) continue;
    const SubGroup& sub = groups_[run.group].sub_groups[run.sub_group];
    const OptimizerGroup& hyper =
        options_.optimizer_groups[static_cast<std::size_t>(run.optimizer_group)];
    const double rate = learning_rate * hyper.learning_rate_factor;
    const auto part = [&](const Buffer& buffer) {
      return buffer.view().slice(run.begin, run.size);
    };
    if (options_.optimizer == OptimizerKind::kSgd) {
      sgd_step(
          part(sub.master), part(sub.grad),
          {.learning_rate = rate, .weight_decay = hyper.weight_decay, .grad_scale = grad_scale},
          compute_);
    } else {
      adamw_step(part(sub.master), part(sub.m), part(sub.v), part(sub.grad),
                 {.learning_rate = rate,
                  .beta1 = hyper.beta1,
                  .beta2 = hyper.beta2,
                  .eps = hyper.eps,
                  .weight_decay = hyper.weight_decay,
                  .grad_scale = grad_scale,
                  .t = groups_[run.group].updates},
                 compute_);
    }
  }
}

}  // namespace zero3
