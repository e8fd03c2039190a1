#include "group_communicator.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <zero3/error.h>
#include "payload.h"

namespace zero3::collective {
namespace {

using internal::native_data;
using internal::Output;
using Parts = std::span<const void* const>;

std::byte* bytes_at(const TensorView& view) {
  return static_cast<std::byte*>(native_data(view));
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

/// Of `count` elements, those that rank `rank` sums for all.
Range segment(std::int64_t count, int rank, int world_size) {
  const std::int64_t most = div_ceil(count, world_size);
  const std::int64_t begin = std::min(count, most * rank);
  return {begin, std::min(most, count - begin)};
}

}  // namespace

GroupCommunicator::GroupCommunicator(std::shared_ptr<Group> group, int rank)
    : group_(std::move(group)), rank_(rank), exceptions_at_start_(std::uncaught_exceptions()) {}

GroupCommunicator::~GroupCommunicator() {
  group_->end(rank_, issued_, std::uncaught_exceptions() > exceptions_at_start_);
}

Caller GroupCommunicator::caller(std::string_view label) const {
  return {.rank = rank_, .world_size = world_size(), .label = label};
}

Call GroupCommunicator::new_call(Header header, const void* source) const {
  return {.group = group_,
          .rank = rank_,
          .sequence = issued_,
          .header = std::move(header),
          .source = source};
}

void GroupCommunicator::issue(Call call_value, Stream& stream) {
  const auto call = std::make_shared<Call>(std::move(call_value));
  const auto gate = [&](int level) { return std::make_shared<LevelGate>(call, level); };
  const auto skipped = [call](const std::exception_ptr& error) { call->group->skip(*call, error); };
  const Stream* native = &stream.native();
  const std::string name = task_name(call->header.operation, call->header.label);
  // A group may write those of the first step from the arrival on.
  std::vector<Output> first_outputs;
  if (!call->steps.empty()) first_outputs.swap(call->steps.front().outputs);

  internal::enqueue(stream, {.name = name,
                             .run = [call] { call->group->arrive(*call); },
                             .gate = last_stream_ == native ? nullptr : gate(Group::kTurn),
                             .outputs = std::move(first_outputs),
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

void GroupCommunicator::all_gather(TensorView full, TensorView shard, std::string_view label,
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
  call.steps = {{.name = task_name(name_of(op), label),
                 .outputs = in_place ? outputs_around(target, full.bytes().count(), own, own + part)
                                     : outputs_of(target, full.bytes().count()),
                 .dtype = shard.dtype(),
                 .wire = full.dtype(),
                 .range =
                     [count = shard.count()](int, int) {
                       return Range{0, count};
                     },
                 .place = [=](int owner) { return target + part * owner; }}};
  issue(std::move(call), stream);
  collective::count(counters_, op, Bytes(part * (world_size() - 1)));
}

void GroupCommunicator::reduce_scatter(TensorView accumulator, TensorView full, Reduction reduction,
                                       std::string_view label, Stream& stream) {
  check_reduce_scatter(accumulator, full, reduction, caller(label));
  const auto op = CollectiveOp::kReduceScatter;
  auto* const target = reinterpret_cast<float*>(bytes_at(accumulator));
  Call call = new_call({.operation = name_of(op),
                        .label = std::string(label),
                        .bytes = full.bytes(),
                        .dtype = full.dtype(),
                        .source_dtype = reduction.wire,
                        .into = reduction.into},
                       native_data(full));
  const std::int64_t replaced = reduction.into == Into::kReplace ? accumulator.bytes().count() : 0;
  call.steps = {{.name = task_name(name_of(op), label),
                 .outputs = outputs_of(bytes_at(accumulator), replaced),
                 .dtype = DType::kF32,
                 .wire = reduction.wire,
                 .range =
                     [count = accumulator.count()](int reader, int) {
                       return Range{reader * count, count};
                     },
                 .fold =
                     [target, reduction](Parts parts, std::int64_t begin, std::int64_t count) {
                       collective::fold(target + begin, parts, count, reduction);
                     }}};
  issue(std::move(call), stream);
  collective::count(counters_, op,
                    bytes_of(accumulator.size(), reduction.wire) * (world_size() - 1));
}

void GroupCommunicator::all_reduce(TensorView values, std::string_view label, Stream& stream) {
  check_all_reduce(values, caller(label));
  const auto op = CollectiveOp::kAllReduce;
  std::byte* const data = bytes_at(values);
  const DType dtype = values.dtype();
  const std::int64_t size = size_of(dtype);
  const auto segment_of = [count = values.count(), ranks = world_size()](int rank) {
    return segment(count, rank, ranks);
  };
  const Range own = segment_of(rank_);
  std::byte* const own_data = data + own.begin * size;
  Call call = new_call({.operation = name_of(op),
                        .label = std::string(label),
                        .bytes = values.bytes(),
                        .dtype = dtype},
                       data);
  // Segment r of rank r is read and overwritten by rank r alone until all are done with the sums;
  // then rank r's segment r is only read, and the others' segment r only written, by its owner.
  call.steps = {
      {.name = task_name("all_reduce (sum)", label),
       .dtype = dtype,
       .wire = dtype,
       .range = [segment_of](int reader, int) { return segment_of(reader); },
       .fold = [=](Parts parts, std::int64_t begin,
                   std::int64_t count) { sum(own_data + begin * size, parts, count, dtype); }},
      {.name = task_name("all_reduce (collect)", label),
       .outputs = outputs_around(data, values.bytes().count(), own.begin * size,
                                 (own.begin + own.count) * size),
       .dtype = dtype,
       .wire = dtype,
       .range = [segment_of](int reader,
                             int owner) { return reader == owner ? Range{} : segment_of(owner); },
       .place = [=](int owner) { return data + segment_of(owner).begin * size; }}};
  issue(std::move(call), stream);
  const std::int64_t received = own.count * (world_size() - 1) + values.count() - own.count;
  collective::count(counters_, op, Bytes(received * size));
}

void GroupCommunicator::all_to_all(TensorView out, TensorView in, std::string_view label,
                                   Stream& stream) {
  check_all_to_all(out, in, caller(label));
  const auto op = CollectiveOp::kAllToAll;
  std::byte* const target = bytes_at(out);
  const std::int64_t count = in.count() / world_size();
  const std::int64_t part = count * size_of(in.dtype());
  Call call = new_call({.operation = name_of(op),
                        .label = std::string(label),
                        .bytes = in.bytes(),
                        .dtype = in.dtype()},
                       native_data(in));
  call.steps = {{.name = task_name(name_of(op), label),
                 .outputs = outputs_of(target, out.bytes().count()),
                 .dtype = in.dtype(),
                 .wire = in.dtype(),
                 .range =
                     [count](int reader, int) {
                       return Range{count * reader, count};
                     },
                 .place = [=](int owner) { return target + part * owner; }}};
  issue(std::move(call), stream);
  collective::count(counters_, op, Bytes(part * (world_size() - 1)));
}

void GroupCommunicator::broadcast(TensorView values, int root, std::string_view label,
                                  Stream& stream) {
  check_broadcast(values, root, caller(label));
  const auto op = CollectiveOp::kBroadcast;
  std::byte* const data = bytes_at(values);
  const std::int64_t received = rank_ == root ? 0 : values.bytes().count();
  Call call = new_call({.operation = name_of(op),
                        .label = std::string(label),
                        .bytes = values.bytes(),
                        .dtype = values.dtype(),
                        .root = root},
                       data);
  call.steps = {{.name = task_name(name_of(op), label),
                 .outputs = outputs_of(data, received),
                 .dtype = values.dtype(),
                 .wire = values.dtype(),
                 .range =
                     [root, count = values.count()](int reader, int owner) {
                       return owner == root && reader != root ? Range{0, count} : Range{};
                     },
                 .place = [data](int) { return data; }}};
  issue(std::move(call), stream);
  collective::count(counters_, op, Bytes(received));
}

void GroupCommunicator::barrier(std::string_view label, Stream& stream) {
  issue(new_call({.operation = name_of(CollectiveOp::kBarrier), .label = std::string(label)}),
        stream);
  collective::count(counters_, CollectiveOp::kBarrier, Bytes(0));
}

std::unique_ptr<Communicator> GroupCommunicator::split(int color, int key, Stream& stream) {
  const auto child = std::make_shared<std::unique_ptr<Communicator>>();
  Call call = new_call({.operation = "split"});
  call.color = color;
  call.key = key;
  call.steps = {
      {.name = "split", .finish = [child](const Call& own) { *child = own.group->child(own); }}};
  issue(std::move(call), stream);
  stream.synchronize();
  return std::move(*child);
}

void GroupCommunicator::abort(std::string_view reason) noexcept {
  group_->abort(rank_, reason);
}

}  // namespace zero3::collective
