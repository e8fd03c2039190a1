#include "in_place_communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include <zero3/error.h>
#include "payload.h"

namespace zero3::collective {
namespace {

using internal::native_data;
using internal::Output;

std::byte* bytes_at(const TensorView& view) {
  return static_cast<std::byte*>(native_data(view));
}

const std::byte* source_of(const Call* peer) {
  return static_cast<const std::byte*>(peer->source);
}

void copy_bytes(std::byte* target, const std::byte* source, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(target, source, static_cast<std::size_t>(bytes));
}

/// `bytes` at `data` except [begin, end), as outputs.
std::vector<Output> outputs_around(std::byte* data, std::int64_t bytes, std::int64_t begin,
                                   std::int64_t end) {
  std::vector<Output> outputs;
  if (begin > 0) outputs.push_back({data, static_cast<std::size_t>(begin)});
  if (end < bytes) outputs.push_back({data + end, static_cast<std::size_t>(bytes - end)});
  return outputs;
}

std::vector<Output> outputs_of(std::byte* data, std::int64_t bytes) {
  return outputs_around(data, bytes, 0, 0);
}

std::string task_name(std::string_view operation, std::string_view label) {
  return concat(operation, ' ', label);
}

/// Elements [begin, end) of `count` that rank `rank` sums for all.
struct Segment {
  Segment(std::int64_t count, int rank, int world_size)
      : begin(std::min(count, div_ceil(count, world_size) * rank)),
        end(std::min(count, begin + div_ceil(count, world_size))) {}
  std::int64_t begin, end;
};

}  // namespace

InPlaceCommunicator::InPlaceCommunicator(std::shared_ptr<Group> group, int rank)
    : group_(std::move(group)), rank_(rank), exceptions_at_start_(std::uncaught_exceptions()) {}

InPlaceCommunicator::~InPlaceCommunicator() {
  group_->end(rank_, issued_, std::uncaught_exceptions() > exceptions_at_start_);
}

Caller InPlaceCommunicator::caller(std::string_view label) const {
  return {.rank = rank_, .world_size = world_size(), .label = label};
}

Call InPlaceCommunicator::new_call(Header header, const void* source) const {
  return {.group = group_,
          .rank = rank_,
          .sequence = issued_,
          .header = std::move(header),
          .source = source};
}

void InPlaceCommunicator::issue(Call call_value, Stream& stream) {
  const auto call = std::make_shared<Call>(std::move(call_value));
  const auto gate = [&](int level) { return std::make_shared<LevelGate>(call, level); };
  const auto skipped = [call](const std::exception_ptr& error) { call->group->skip(*call, error); };
  const Stream* native = &stream.native();
  const std::string name = task_name(call->header.operation, call->header.label);

  internal::enqueue(stream, {.name = name,
                             .run = [call] { call->group->arrive(*call); },
                             .gate = last_stream_ == native ? nullptr : gate(Group::kTurn),
                             .skipped = skipped,
                             .silent = true});
  ++issued_;
  last_stream_ = native;
  const int steps = static_cast<int>(call->steps.size());
  for (int step = 0; step < steps; ++step) {
    Step& part = call->steps[static_cast<std::size_t>(step)];
    internal::enqueue(stream, {.name = part.name,
                               .run = [call, step] { call->group->work(*call, step); },
                               .gate = gate(step),
                               .outputs = std::move(part.outputs),
                               .skipped = skipped});
  }
  internal::enqueue(stream, {.name = name,
                             .run = [call] { call->group->depart(*call); },
                             .gate = gate(steps),
                             .skipped = skipped,
                             .silent = true});
}

void InPlaceCommunicator::all_gather(TensorView full, TensorView shard, std::string_view label,
                                     Stream& stream) {
  check_all_gather(full, shard, caller(label));
  const auto op = CollectiveOp::kAllGather;
  std::byte* const target = bytes_at(full);
  const std::int64_t part = bytes_of(shard.size(), full.dtype()).count();
  const std::int64_t own = part * rank_;
  const bool in_place = !shard.empty() && shard.dtype() == full.dtype() &&
                        same_place(full.slice(shard.size() * rank_, shard.size()), shard);

  Call call = new_call({.operation = name_of(op),
                        .label = std::string(label),
                        .bytes = full.bytes(),
                        .dtype = full.dtype(),
                        .source_dtype = shard.dtype()},
                       native_data(shard));
  const auto run = [=, dtype = full.dtype(), same = shard.dtype() == full.dtype(),
                    count = shard.count(), rank = rank_](Peers peers) {
    std::byte* out = target;
    for (const Call* peer : peers) {
      if (!same) {
        narrow(out, dtype, static_cast<const float*>(peer->source), count);
      } else if (!in_place || peer->rank != rank) {
        copy_bytes(out, source_of(peer), part);
      }
      out += part;
    }
  };
  call.steps = {{.name = task_name(name_of(op), label),
                 .outputs = in_place ? outputs_around(target, full.bytes().count(), own, own + part)
                                     : outputs_of(target, full.bytes().count()),
                 .run = run}};
  issue(std::move(call), stream);
  collective::count(counters_, op, Bytes(part * (world_size() - 1)));
}

void InPlaceCommunicator::reduce_scatter(TensorView accumulator, TensorView full,
                                         Reduction reduction, std::string_view label,
                                         Stream& stream) {
  check_reduce_scatter(accumulator, full, reduction, caller(label));
  const auto op = CollectiveOp::kReduceScatter;
  std::byte* const target = bytes_at(accumulator);
  Call call = new_call({.operation = name_of(op),
                        .label = std::string(label),
                        .bytes = full.bytes(),
                        .dtype = full.dtype(),
                        .source_dtype = reduction.wire,
                        .into = reduction.into},
                       native_data(full));
  const auto run = [target, reduction, count = accumulator.count(), rank = rank_](Peers peers) {
    std::vector<const float*> contributions;
    for (const Call* peer : peers) {
      contributions.push_back(static_cast<const float*>(peer->source) + rank * count);
    }
    fold(reinterpret_cast<float*>(target), contributions, count, reduction);
  };
  const bool replaces = reduction.into == Into::kReplace;
  call.steps = {{.name = task_name(name_of(op), label),
                 .outputs = outputs_of(target, replaces ? accumulator.bytes().count() : 0),
                 .run = run}};
  issue(std::move(call), stream);
  collective::count(counters_, op,
                    bytes_of(accumulator.size(), reduction.wire) * (world_size() - 1));
}

void InPlaceCommunicator::all_reduce(TensorView values, std::string_view label, Stream& stream) {
  check_all_reduce(values, caller(label));
  const auto op = CollectiveOp::kAllReduce;
  std::byte* const data = bytes_at(values);
  const std::int64_t count = values.count();
  const std::int64_t size = size_of(values.dtype());
  const Segment own(count, rank_, world_size());
  Call call = new_call({.operation = name_of(op),
                        .label = std::string(label),
                        .bytes = values.bytes(),
                        .dtype = values.dtype()},
                       data);
  // Segment r of rank r is read and overwritten by rank r alone until all are done with the sums;
  // then rank r's segment r is only read, and the others' segment r only written, by its owner.
  const auto sum_own = [data, own, size, dtype = values.dtype()](Peers peers) {
    if (own.begin == own.end) return;
    std::vector<const void*> contributions;
    for (const Call* peer : peers) contributions.push_back(source_of(peer) + own.begin * size);
    sum(data + own.begin * size, contributions, own.end - own.begin, dtype);
  };
  const auto collect = [data, count, size, rank = rank_](Peers peers) {
    for (const Call* peer : peers) {
      const Segment segment(count, peer->rank, static_cast<int>(peers.size()));
      const std::int64_t begin = segment.begin * size;
      if (peer->rank == rank || segment.begin == segment.end) continue;
      copy_bytes(data + begin, source_of(peer) + begin, segment.end * size - begin);
    }
  };
  call.steps = {
      {.name = task_name("all_reduce (sum)", label), .outputs = {}, .run = sum_own},
      {.name = task_name("all_reduce (collect)", label),
       .outputs = outputs_around(data, values.bytes().count(), own.begin * size, own.end * size),
       .run = collect}};
  issue(std::move(call), stream);
  collective::count(counters_, op, values.bytes() * (world_size() - 1));
}

void InPlaceCommunicator::all_to_all(TensorView out, TensorView in, std::string_view label,
                                     Stream& stream) {
  check_all_to_all(out, in, caller(label));
  const auto op = CollectiveOp::kAllToAll;
  std::byte* const target = bytes_at(out);
  const std::int64_t part = in.bytes().count() / world_size();
  Call call = new_call({.operation = name_of(op),
                        .label = std::string(label),
                        .bytes = in.bytes(),
                        .dtype = in.dtype()},
                       native_data(in));
  const auto run = [target, part, rank = rank_](Peers peers) {
    if (part == 0) return;
    for (const Call* peer : peers) {
      copy_bytes(target + part * peer->rank, source_of(peer) + part * rank, part);
    }
  };
  call.steps = {{.name = task_name(name_of(op), label),
                 .outputs = outputs_of(target, out.bytes().count()),
                 .run = run}};
  issue(std::move(call), stream);
  collective::count(counters_, op, Bytes(part * (world_size() - 1)));
}

void InPlaceCommunicator::broadcast(TensorView values, int root, std::string_view label,
                                    Stream& stream) {
  check_broadcast(values, root, caller(label));
  const auto op = CollectiveOp::kBroadcast;
  std::byte* const data = bytes_at(values);
  const std::int64_t bytes = rank_ == root ? 0 : values.bytes().count();
  Call call = new_call({.operation = name_of(op),
                        .label = std::string(label),
                        .bytes = values.bytes(),
                        .dtype = values.dtype(),
                        .root = root},
                       data);
  call.steps = {{.name = task_name(name_of(op), label),
                 .outputs = outputs_of(data, bytes),
                 .run = [data, bytes, root](Peers peers) {
                   copy_bytes(data, source_of(peers[static_cast<std::size_t>(root)]), bytes);
                 }}};
  issue(std::move(call), stream);
  collective::count(counters_, op, Bytes(bytes));
}

void InPlaceCommunicator::barrier(std::string_view label, Stream& stream) {
  issue(new_call({.operation = name_of(CollectiveOp::kBarrier), .label = std::string(label)}),
        stream);
  collective::count(counters_, CollectiveOp::kBarrier, Bytes(0));
}

std::unique_ptr<Communicator> InPlaceCommunicator::split(int color, int key, Stream& stream) {
  const auto child = std::make_shared<std::unique_ptr<Communicator>>();
  Call call = new_call({.operation = "split"});
  call.color = color;
  call.key = key;
  call.steps = {{.name = "split", .outputs = {}, .run = [child, rank = rank_](Peers peers) {
                   const Call& own = *peers[static_cast<std::size_t>(rank)];
                   *child = own.group->child(own);
                 }}};
  issue(std::move(call), stream);
  stream.synchronize();
  return std::move(*child);
}

void InPlaceCommunicator::abort(std::string_view reason) noexcept {
  group_->abort(rank_, reason);
}

}  // namespace zero3::collective
