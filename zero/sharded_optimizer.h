#pragma once

#include <deque>
#include <vector>

#include <zero3/options.h>
#include "param_group.h"

namespace zero3 {

/// Updates this rank's masters and moments from its gradient shards, on the compute stream.
class ShardedOptimizer {
 public:
  /// Finds the runs: neighbours in a shard that share hyperparameters are updated by one call.
  ShardedOptimizer(std::deque<ParamGroup>& groups, const EngineOptions& options, int rank,
                   Stream& compute);

  /// One step of every group that `used` names; `grad_scale` unscales, divides and clips in one
  /// factor.
  void step(double learning_rate, double grad_scale, const std::vector<bool>& used);

 private:
  struct Run {
    std::size_t group, sub_group;
    int optimizer_group;
    Elements begin, size;  ///< within the shard
  };
  void add_runs(std::size_t group_index, std::size_t sub_index, int rank);

  std::deque<ParamGroup>& groups_;
  const EngineOptions& options_;
  Stream& compute_;
  std::vector<Run> runs_;
};

}  // namespace zero3
