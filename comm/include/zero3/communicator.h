#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include <zero3/gemm.h>
#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

enum class CollectiveOp : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kBroadcast,
  kBarrier
};
inline constexpr std::size_t kCollectiveOpCount = 6;
/// "all_gather", "reduce_scatter", …
[[nodiscard]] std::string_view name_of(CollectiveOp op);

/// Collectives enqueued so far, by operation (splits are none), and the bytes that this rank
/// receives from other ranks in them as a network carries them; N ranks, 0 bytes for N = 1:
///   all_gather      (N − 1) · a shard, in the dtype of `full`
///   reduce_scatter  (N − 1) · the accumulator's elements, in `wire`
///   all_reduce      (N − 1) · the values: gathered, and folded by every rank
///   all_to_all      (N − 1) / N of the view
///   broadcast       the values, 0 at the root
struct CommCounters {
  struct Entry {
    std::int64_t count = 0;
    Bytes bytes;
  };
  std::array<Entry, kCollectiveOpCount> by_op{};
  [[nodiscard]] Entry& operator[](CollectiveOp op) { return by_op[static_cast<std::size_t>(op)]; }
  [[nodiscard]] const Entry& operator[](CollectiveOp op) const {
    return by_op[static_cast<std::size_t>(op)];
  }
};

/// How a reduce_scatter folds.
struct Reduction {
  /// Each rank's contribution is rounded to this before it is added: what travels.
  DType wire = DType::kF32;
  /// Whether rank 0's contribution replaces the accumulator or is added to it.
  Into into = Into::kReplace;
};

/// A group of ranks that issue the same collectives in the same order. Every operation is enqueued
/// on a stream and runs in that stream's order; views stay valid until the stream has passed.
/// `label` names what moves (a parameter group) in errors and traces, and must agree on all ranks.
///
/// Before payload moves, ranks compare (sequence, operation, label, bytes): a mismatch, a rank that
/// failed or stalled longer than the timeout is a CommError on every rank, thrown by the stream's
/// synchronize() and naming rank, operation and label. Only sums travel, in fp32 or double, folded
/// in rank order: bits depend on nothing else.
///
/// Arguments that break an operation's contract, unsupported dtypes among them, throw UsageError at
/// the call, before anything is enqueued.
///
/// One host thread of a rank enqueues at a time. Operations of one communicator run in the order of
/// enqueueing, also on two streams, so use one communicator per stream (`duplicate`). Destruction
/// ends this rank's part: what is enqueued still runs, peers that wait for more get an error.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;

  /// full = the shards of ranks 0, 1, … in order; full.size() == world_size · shard.size(). Where
  /// dtypes differ each element is cast (fp32 → bf16/fp16, to nearest even). `shard` may be this
  /// rank's part of `full`.
  virtual void all_gather(TensorView full, TensorView shard, std::string_view label,
                          Stream& stream) = 0;
  /// Own range of the left fold over ranks: accumulator (fp32) = [accumulator +] full_0 + full_1 +
  /// …, in that order, each contribution rounded to `reduction.wire`. full (fp32) has world_size ·
  /// accumulator.size() elements. At world size 1 `full` may be `accumulator` (with kReplace): then
  /// only the rounding is done.
  virtual void reduce_scatter(TensorView accumulator, TensorView full, Reduction reduction,
                              std::string_view label, Stream& stream) = 0;
  /// values (fp32, fp64, int64 or uint64) = the sum over ranks in rank order, the same bits on
  /// every rank.
  virtual void all_reduce(TensorView values, std::string_view label, Stream& stream) = 0;
  /// Part r of `out` = part rank() of rank r's `in`; both have world_size equal parts; no overlap.
  virtual void all_to_all(TensorView out, TensorView in, std::string_view label,
                          Stream& stream) = 0;
  /// values = those of `root`.
  virtual void broadcast(TensorView values, int root, std::string_view label, Stream& stream) = 0;
  /// Passes once every rank has reached it.
  virtual void barrier(std::string_view label, Stream& stream) = 0;

  /// Collective: the ranks that give the same color form a group, ordered by (key, rank). Called by
  /// every rank in the same place of its sequence; exchanges the colors on `stream` and
  /// synchronizes it. Throws CommError.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int color, int key, Stream& stream) = 0;
  /// A communicator over the same ranks with an order of its own. Collective, like split.
  [[nodiscard]] std::unique_ptr<Communicator> duplicate(Stream& stream) {
    return split(0, rank(), stream);
  }

  /// Makes every pending and later operation on every rank fail with CommError("… rank R: reason").
  /// Never throws; from any thread.
  virtual void abort(std::string_view reason) noexcept = 0;

  [[nodiscard]] virtual CommCounters counters() const = 0;

 protected:
  Communicator() = default;
};

}  // namespace zero3
