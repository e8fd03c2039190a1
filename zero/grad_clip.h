#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include <zero3/communicator.h>
#include <zero3/options.h>
#include "param_group.h"

namespace zero3 {

/// What all ranks know after a step's gradients are reduced.
struct StepSums {
  double squares = 0;   ///< of all gradient elements, before any factor
  double loss_sum = 0;  ///< folded in the order of micro-batches
  std::int64_t tokens = 0;
  std::vector<bool> used;           ///< by group: whether any rank used it
  std::string first_bad_parameter;  ///< set when `squares` is not finite
};

/// Factor that brings a gradient of this norm to at most `clip`: min(1, clip / (norm + 1e-6)) as in
/// PyTorch's clip_grad_norm_; 1 for clip 0.
[[nodiscard]] double clip_factor(double norm, double clip);

/// The global norm, and what ranks tell each other with it: one all-gather a step.
///
/// Each rank reports doubles: its tokens, its micro-steps' loss sums, for each group whether it was
/// used, and the sum of squares of each block of 1024 elements of its gradient shards. Every rank
/// folds all of them in the same order (groups as registered, blocks by their place in the flat
/// buffer), so the norm has the same bits on every rank and for every N, and ranks agree on
/// finiteness without a further message.
class GlobalNorm {
 public:
  struct Config {
    Stream& compute;
    Stream& gather;
    Communicator& communicator;
    std::deque<ParamGroup>& groups;
    int micro_steps;
  };
  explicit GlobalNorm(const Config& config);

  /// Of the two report buffers, for the plan.
  [[nodiscard]] static Bytes workspace_bytes(const std::deque<ParamGroup>& groups, int world_size,
                                             int micro_steps);

  /// Copies a micro-step's loss sum (fp64, one element), in compute-stream order.
  void report_loss(int micro_step, TensorView loss_sum);
  /// Blocks. To be called when the compute stream has been made to wait for the reductions. Throws
  /// CommError that names the rank whose report holds no count of tokens.
  [[nodiscard]] StepSums finish_step(std::int64_t tokens);
  void begin_step();
  /// Every rank's values in rank order. Blocks.
  [[nodiscard]] std::vector<double> gather_values(std::span<const double> values,
                                                  std::string_view label);
  /// Of fp32 values whose first has this index in the model (<zero3/reduce.h>). Blocks.
  [[nodiscard]] std::uint64_t checksum(TensorView values, std::int64_t first_index);
  /// Sum mod 2^64 of every rank's value. Blocks.
  [[nodiscard]] std::uint64_t add_over_ranks(std::uint64_t value, std::string_view label);

 private:
  struct BadBlock {
    int rank;
    std::size_t group, sub_group;
    std::int64_t block;
  };
  /// All-gathers `count` doubles of the report from `begin` on to host_all_.
  void exchange(std::int64_t begin, std::int64_t count, std::string_view label);
  [[nodiscard]] StepSums fold_reports();
  [[nodiscard]] std::string find_bad(const BadBlock& bad_block);

  Config config_;
  std::int64_t header_, report_size_;
  Buffer report_, all_;  ///< fp64: own report, and those of all ranks
  std::vector<double> host_report_, host_all_;
};

}  // namespace zero3
