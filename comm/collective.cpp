#include "collective.h"

#include <functional>

#include <zero3/error.h>

namespace zero3::collective {
namespace {

const std::byte* begin_of(const TensorView& view) {
  return static_cast<const std::byte*>(view.data());
}
const std::byte* end_of(const TensorView& view) {
  return begin_of(view) + view.bytes().count();
}

bool overlap(const TensorView& a, const TensorView& b) {
  if (a.empty() || b.empty()) return false;
  const std::less<> before;
  return before(begin_of(a), end_of(b)) && before(begin_of(b), end_of(a));
}

std::string name(CollectiveOp op, Caller caller) {
  return concat(name_of(op), " of '", caller.label, "' on rank ", caller.rank, ": ");
}

}  // namespace

bool same_place(const TensorView& a, const TensorView& b) {
  return begin_of(a) == begin_of(b);
}

void check_all_gather(const TensorView& full, const TensorView& shard, Caller caller) {
  const auto op = CollectiveOp::kAllGather;
  ZERO3_CHECK(full.size() == shard.size() * caller.world_size, name(op, caller),
              "the full view has ", full.size(), " elements, it needs ",
              shard.size() * caller.world_size, " for ", caller.world_size, " shards of ",
              shard.size());
  const bool narrows =
      shard.dtype() == DType::kF32 && (full.dtype() == DType::kBF16 || full.dtype() == DType::kF16);
  ZERO3_CHECK(full.dtype() == shard.dtype() || narrows, name(op, caller), "a shard of ",
              shard.dtype(), " cannot be gathered as ", full.dtype(),
              "; give both one dtype, or gather fp32 as bf16 or fp16");
  if (!overlap(full, shard)) return;
  const TensorView own = full.slice(shard.size() * caller.rank, shard.size());
  ZERO3_CHECK(full.dtype() == shard.dtype() && same_place(own, shard), name(op, caller),
              "the shard overlaps the full view and is not this rank's part of it");
}

void check_reduce_scatter(const TensorView& accumulator, const TensorView& full,
                          Reduction reduction, Caller caller) {
  const auto op = CollectiveOp::kReduceScatter;
  ZERO3_CHECK(accumulator.dtype() == DType::kF32 && full.dtype() == DType::kF32, name(op, caller),
              "sums are made in fp32, the accumulator is ", accumulator.dtype(),
              " and the full view ", full.dtype());
  ZERO3_CHECK(reduction.wire == DType::kF32 || reduction.wire == DType::kBF16 ||
                  reduction.wire == DType::kF16,
              name(op, caller), "contributions cannot travel as ", reduction.wire,
              "; choose fp32, bf16 or fp16");
  ZERO3_CHECK(full.size() == accumulator.size() * caller.world_size, name(op, caller),
              "the full view has ", full.size(), " elements, it needs ",
              accumulator.size() * caller.world_size, " for ", caller.world_size, " parts of ",
              accumulator.size());
  if (!overlap(full, accumulator)) return;
  ZERO3_CHECK(
      caller.world_size == 1 && same_place(full, accumulator) && reduction.into == Into::kReplace,
      name(op, caller),
      "the accumulator overlaps the full view; only a group of one may reduce in place, "
      "and only when it replaces");
}

void check_all_reduce(const TensorView& values, Caller caller) {
  const DType dtype = values.dtype();
  ZERO3_CHECK(
      dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI64 || dtype == DType::kU64,
      name(CollectiveOp::kAllReduce, caller), "sums of ", dtype,
      " are not made; use fp32, fp64, int64 or uint64");
}

void check_all_to_all(const TensorView& out, const TensorView& in, Caller caller) {
  const auto op = CollectiveOp::kAllToAll;
  ZERO3_CHECK(out.dtype() == in.dtype() && out.size() == in.size(), name(op, caller), in.size(),
              ' ', in.dtype(), " elements go to ", out.size(), ' ', out.dtype(), " elements");
  ZERO3_CHECK(in.count() % caller.world_size == 0, name(op, caller), in.size(),
              " elements are not ", caller.world_size, " equal parts");
  ZERO3_CHECK(!overlap(out, in), name(op, caller), "the two views overlap");
}

void check_broadcast(const TensorView&, int root, Caller caller) {
  ZERO3_CHECK(root >= 0 && root < caller.world_size, name(CollectiveOp::kBroadcast, caller),
              "root ", root, " is not one of ", caller.world_size, " ranks");
}

void count(CommCounters& counters, CollectiveOp op, Bytes received) {
  CommCounters::Entry& entry = counters[op];
  ++entry.count;
  entry.bytes += received;
}

}  // namespace zero3::collective
