#include <string>
#include <utility>

#include <zero3/cast.h>
#include <zero3/copy.h>
#include <zero3/error.h>
#include <zero3/local_world.h>
#include <zero3/reduce.h>
#include "collective.h"
#include "local/local_group.h"

namespace zero3 {
namespace local {
namespace {

/// A group of one: what is left of each operation is a copy, a cast or a rounding, enqueued as an
/// ordinary kernel (so on any device), or nothing.
class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator(std::shared_ptr<World> world, int world_rank)
      : world_(std::move(world)), world_rank_(world_rank) {}

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int world_size() const override { return 1; }

  void all_gather(TensorView full, TensorView shard, std::string_view label,
                  Stream& stream) override {
    collective::check_all_gather(full, shard, caller(label));
    if (!begin(CollectiveOp::kAllGather, label, stream) || full.empty()) return;
    if (full.dtype() != shard.dtype()) {
      cast(full, shard, stream);
    } else if (!collective::same_place(full, shard)) {
      copy(full, shard, stream);
    }
  }

  void reduce_scatter(TensorView accumulator, TensorView full, Reduction reduction,
                      std::string_view label, Stream& stream) override {
    collective::check_reduce_scatter(accumulator, full, reduction, caller(label));
    if (!begin(CollectiveOp::kReduceScatter, label, stream) || full.empty()) return;
    if (!collective::same_place(full, accumulator)) {
      fold(accumulator, full, reduction.wire, reduction.into, stream);
    } else if (reduction.wire != DType::kF32) {
      round_to(accumulator, reduction.wire, stream);
    }
  }

  void all_reduce(TensorView values, std::string_view label, Stream& stream) override {
    collective::check_all_reduce(values, caller(label));
    begin(CollectiveOp::kAllReduce, label, stream);
  }

  void all_to_all(TensorView out, TensorView in, std::string_view label, Stream& stream) override {
    collective::check_all_to_all(out, in, caller(label));
    if (begin(CollectiveOp::kAllToAll, label, stream)) copy(out, in, stream);
  }

  void broadcast(TensorView values, int root, std::string_view label, Stream& stream) override {
    collective::check_broadcast(values, root, caller(label));
    begin(CollectiveOp::kBroadcast, label, stream);
  }

  void barrier(std::string_view label, Stream& stream) override {
    begin(CollectiveOp::kBarrier, label, stream);
  }

  [[nodiscard]] std::unique_ptr<Communicator> split(int, int, Stream& stream) override {
    stream.synchronize();
    return std::make_unique<SelfCommunicator>(world_, world_rank_);
  }

  void abort(std::string_view reason) noexcept override { world_->abort(world_rank_, reason); }
  [[nodiscard]] CommCounters counters() const override { return counters_; }

 private:
  static collective::Caller caller(std::string_view label) {
    return {.rank = 0, .world_size = 1, .label = label};
  }

  /// Counts. False after an abort: then the stream fails in place of the operation.
  bool begin(CollectiveOp op, std::string_view label, Stream& stream) {
    collective::count(counters_, op, Bytes(0));
    const std::optional<Failure> failure = world_->failure_now();
    if (!failure) return true;
    const std::string message = concat(name_of(op), " of '", label, "': ", failure->message);
    stream.call(name_of(op), [message] { throw CommError(message); });
    return false;
  }

  std::shared_ptr<World> world_;
  int world_rank_;
  CommCounters counters_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_end(std::shared_ptr<World> world, int world_rank) {
  return std::make_unique<SelfCommunicator>(std::move(world), world_rank);
}

}  // namespace local

std::unique_ptr<Communicator> make_self_communicator() {
  return local::make_self_end(std::make_shared<local::World>(std::chrono::milliseconds(0)), 0);
}

}  // namespace zero3
