#include <zero3/faulty_communicator.h>

#include <mutex>
#include <thread>
#include <utility>

namespace zero3 {
namespace {

/// The first `count` elements of each of `parts` equal parts cannot be had as one view, so a
/// smaller operation is one over fewer elements from the front.
TensorView without_last(const TensorView& view, std::int64_t elements, std::string_view label) {
  ZERO3_CHECK(view.count() >= elements && elements > 0, "a fault cannot make '", label,
              "' smaller: its parts are empty");
  return view.slice(0, view.count() - elements);
}

}  // namespace

struct FaultyCommunicator::Plan {
  struct Entry {
    Fault fault;
    std::int64_t matches = 0;
  };
  std::mutex mutex;
  std::vector<Entry> entries;
};

/// What is left of an operation after faults.
struct FaultyCommunicator::Changed {
  std::string label;
  bool smaller = false;
};

FaultyCommunicator::FaultyCommunicator(std::unique_ptr<Communicator> inner,
                                       std::vector<Fault> faults)
    : inner_(std::move(inner)), plan_(std::make_shared<Plan>()) {
  for (Fault& fault : faults) plan_->entries.push_back({std::move(fault)});
}

FaultyCommunicator::~FaultyCommunicator() = default;

/// Empty: the operation is not issued.
std::optional<FaultyCommunicator::Changed> FaultyCommunicator::strike(CollectiveOp op,
                                                                      std::string_view label,
                                                                      Stream& stream) {
  std::vector<Fault> struck;
  {
    const std::scoped_lock lock(plan_->mutex);
    for (auto& [fault, matches] : plan_->entries) {
      if (fault.op.value_or(op) != op || (!fault.label.empty() && fault.label != label)) continue;
      const std::int64_t index = matches++;
      if (fault.at == Fault::kEvery || fault.at == index) struck.push_back(fault);
    }
  }
  Changed changed{std::string(label)};
  for (const Fault& fault : struck) {
    const std::string error =
        concat("injected fault in ", name_of(op), " of '", label, "' on rank ", inner_->rank());
    switch (fault.kind) {
      case Fault::Kind::kDelay:
        stream.call("injected delay",
                    [delay = fault.delay] { std::this_thread::sleep_for(delay); });
        break;
      case Fault::Kind::kThrow:
        throw FaultError(error);
      case Fault::Kind::kFail:
        stream.call("injected failure", [error] { throw FaultError(error); });
        break;
      case Fault::Kind::kExit:
        std::_Exit(0);
      case Fault::Kind::kDrop:
        return std::nullopt;
      case Fault::Kind::kOtherOp:
        if (op == CollectiveOp::kBarrier) {
          inner_->all_reduce({}, label, stream);
        } else {
          inner_->barrier(label, stream);
        }
        return std::nullopt;
      case Fault::Kind::kOtherLabel:
        changed.label += " (another)";
        break;
      case Fault::Kind::kSmaller:
        changed.smaller = true;
        break;
    }
  }
  return changed;
}

int FaultyCommunicator::rank() const {
  return inner_->rank();
}
int FaultyCommunicator::world_size() const {
  return inner_->world_size();
}

void FaultyCommunicator::all_gather(TensorView full, TensorView shard, std::string_view label,
                                    Stream& stream) {
  const auto changed = strike(CollectiveOp::kAllGather, label, stream);
  if (!changed) return;
  if (changed->smaller) {
    const Elements part = shard.size();
    const bool in_place = !shard.empty() && full.slice(part * rank(), part).data() == shard.data();
    full = without_last(full, world_size(), label);
    shard = without_last(shard, 1, label);
    if (in_place) shard = full.slice(shard.size() * rank(), shard.size());
  }
  inner_->all_gather(full, shard, changed->label, stream);
}

void FaultyCommunicator::reduce_scatter(TensorView accumulator, TensorView full,
                                        Reduction reduction, std::string_view label,
                                        Stream& stream) {
  const auto changed = strike(CollectiveOp::kReduceScatter, label, stream);
  if (!changed) return;
  if (changed->smaller) {
    full = without_last(full, world_size(), label);
    accumulator = without_last(accumulator, 1, label);
  }
  inner_->reduce_scatter(accumulator, full, reduction, changed->label, stream);
}

void FaultyCommunicator::all_reduce(TensorView values, std::string_view label, Stream& stream) {
  const auto changed = strike(CollectiveOp::kAllReduce, label, stream);
  if (!changed) return;
  if (changed->smaller) values = without_last(values, 1, label);
  inner_->all_reduce(values, changed->label, stream);
}

void FaultyCommunicator::all_to_all(TensorView out, TensorView in, std::string_view label,
                                    Stream& stream) {
  const auto changed = strike(CollectiveOp::kAllToAll, label, stream);
  if (!changed) return;
  if (changed->smaller) {
    out = without_last(out, world_size(), label);
    in = without_last(in, world_size(), label);
  }
  inner_->all_to_all(out, in, changed->label, stream);
}

void FaultyCommunicator::broadcast(TensorView values, int root, std::string_view label,
                                   Stream& stream) {
  const auto changed = strike(CollectiveOp::kBroadcast, label, stream);
  if (!changed) return;
  if (changed->smaller) values = without_last(values, 1, label);
  inner_->broadcast(values, root, changed->label, stream);
}

void FaultyCommunicator::barrier(std::string_view label, Stream& stream) {
  const auto changed = strike(CollectiveOp::kBarrier, label, stream);
  if (!changed) return;
  ZERO3_CHECK(!changed->smaller, "a fault cannot make '", label,
              "' smaller: a barrier moves nothing");
  inner_->barrier(changed->label, stream);
}

std::unique_ptr<Communicator> FaultyCommunicator::split(int color, int key, Stream& stream) {
  auto part =
      std::make_unique<FaultyCommunicator>(inner_->split(color, key, stream), std::vector<Fault>{});
  part->plan_ = plan_;
  return part;
}

void FaultyCommunicator::abort(std::string_view reason) noexcept {
  inner_->abort(reason);
}

CommCounters FaultyCommunicator::counters() const {
  return inner_->counters();
}

}  // namespace zero3
