#pragma once

#include <string_view>

#include <zero3/communicator.h>

/// What every backend does before it enqueues an operation: check the arguments and count.
namespace zero3::collective {

/// Who issues the operation, and the name that errors give it.
struct Caller {
  int rank;
  int world_size;
  std::string_view label;
};

/// Each throws UsageError unless the arguments fulfil the contract of the operation of that name.
void check_all_gather(const TensorView& full, const TensorView& shard, Caller caller);
void check_reduce_scatter(const TensorView& accumulator, const TensorView& full,
                          Reduction reduction, Caller caller);
void check_all_reduce(const TensorView& values, Caller caller);
void check_all_to_all(const TensorView& out, const TensorView& in, Caller caller);
void check_broadcast(const TensorView& values, int root, Caller caller);

/// Whether both look at the same first byte.
[[nodiscard]] bool same_place(const TensorView& a, const TensorView& b);

/// One more operation, with what this rank receives in it from other ranks.
void count(CommCounters& counters, CollectiveOp op, Bytes received);

}  // namespace zero3::collective
