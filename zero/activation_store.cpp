#include <zero3/activation_store.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include <zero3/buffer.h>
#include <zero3/error.h>
#include "offload_file.h"
#include "offload_tier.h"

namespace zero3 {
namespace {

constexpr std::int64_t kPlaces = 2;

/// Seconds between two points of a stream, summed up. Outlives the store where a stream does.
class StreamTimer {
 public:
  void begin(Stream& stream) {
    stream.call("timer begins",
                [clock = clock_] { clock->begin = std::chrono::steady_clock::now(); });
  }
  void end(Stream& stream) {
    stream.call("timer ends", [clock = clock_] {
      clock->nanoseconds += (std::chrono::steady_clock::now() - clock->begin).count();
    });
  }
  [[nodiscard]] double seconds() const {
    return static_cast<double>(clock_->nanoseconds.load()) * 1e-9;
  }

 private:
  struct Clock {
    /// Of its stream alone.
    std::chrono::steady_clock::time_point begin;
    std::atomic<std::int64_t> nanoseconds = 0;
  };
  std::shared_ptr<Clock> clock_ = std::make_shared<Clock>();
};

}  // namespace

std::string_view name_of(CheckpointMode mode) {
  switch (mode) {
    case CheckpointMode::kNone:
      return "none";
    case CheckpointMode::kRecompute:
      return "recompute";
    case CheckpointMode::kHost:
      return "host";
    case CheckpointMode::kDisk:
      return "disk";
  }
  return "unknown";
}

struct ActivationStore::State {
  Device& device;
  Stream& compute;
  ActivationCheckpoints options;
  std::int64_t count;
  Elements size;
  DType dtype;

  std::unique_ptr<OffloadTier> tier = nullptr;
  std::unique_ptr<Stream> out = nullptr, in = nullptr;
  std::vector<Buffer> places = {};
  /// By tensor: the end of its movement out, and of that back.
  std::vector<Event> stored = {}, loaded = {};
  /// Of this pass.
  Elements current = Elements(0);
  /// Tensors put; of them those not taken yet; the lowest one that is back or on its way.
  std::int64_t put = 0, left = 0, lowest_loading = 0;

  OffloadCounters moved = {};
  StreamTimer out_timer = {}, in_timer = {}, wait_timer = {};

  [[nodiscard]] bool moves() const {
    return options.mode == CheckpointMode::kDisk ||
           (options.mode == CheckpointMode::kHost && !device.host_accessible());
  }
  [[nodiscard]] std::int64_t moving() const {
    return moves() ? std::max<std::int64_t>(0, count - kPlaces) : 0;
  }
  [[nodiscard]] std::int64_t place_count() const {
    return moves() ? std::min(count, kPlaces) : count;
  }
  [[nodiscard]] Bytes bytes() const { return bytes_of(size, dtype); }
  [[nodiscard]] MemoryTag tag() const {
    return options.recompute() ? MemoryTag::kCheckpoints : MemoryTag::kActivations;
  }
  [[nodiscard]] TensorView view(std::int64_t index) const {
    const auto place = static_cast<std::size_t>(index % place_count());
    return places[place].view().slice(Elements(0), current);
  }
  void check_index(std::int64_t index, std::string_view what) const {
    ZERO3_CHECK(!places.empty() || count == 0, "an activation store is used before build()");
    ZERO3_CHECK(index >= 0 && index < count, what, " of tensor ", index, " of a store of ", count);
  }

  /// Compute goes on once the event has passed; what it waits is counted.
  void wait(const Event& event) {
    wait_timer.begin(compute);
    compute.wait(event);
    wait_timer.end(compute);
  }
  void drop_pass();
  void move_out(std::int64_t index);
  void move_in(std::int64_t index);
};

ActivationStore::ActivationStore(Device& device, Stream& compute, ActivationCheckpoints options,
                                 std::int64_t count, Elements size, DType dtype)
    : state_(new State{device, compute, std::move(options), count, size, dtype}) {
  const ActivationCheckpoints& how = state_->options;
  const bool disk = how.mode == CheckpointMode::kDisk;
  ZERO3_CHECK(disk == !how.directory.empty(), "layer inputs that wait in mode '", name_of(how.mode),
              "' ", disk ? "need a directory; give one" : "need no directory; leave it out");
}

ActivationStore::~ActivationStore() {
  for (Stream* stream : {state_->out.get(), state_->in.get()}) {
    try {
      if (stream != nullptr) stream->synchronize();
    } catch (...) {
      // The error of a movement whose result is not wanted any more.
    }
  }
}

MemoryPlan ActivationStore::plan() const {
  MemoryPlan plan;
  plan[state_->tag()] = aligned(state_->bytes()) * state_->place_count();
  return plan;
}

Bytes ActivationStore::host_bytes() const {
  const State& s = *state_;
  if (s.moving() == 0) return Bytes(0);
  return s.options.mode == CheckpointMode::kDisk ? disk_tier_bytes(s.moving(), s.bytes())
                                                 : host_tier_bytes(s.moving(), s.bytes());
}

Bytes ActivationStore::host_bytes_in_use() const {
  return state_->tier ? state_->tier->host_bytes() : Bytes(0);
}

Bytes ActivationStore::disk_bytes() const {
  const State& s = *state_;
  if (s.options.mode != CheckpointMode::kDisk) return Bytes(0);
  return OffloadFile::size_of(s.moving(), s.bytes());
}

std::int64_t ActivationStore::moving() const {
  return state_->moving();
}

std::string ActivationStore::remark() const {
  const State& s = *state_;
  if (s.options.mode == CheckpointMode::kHost && !s.moves()) {
    return concat("host and device are one memory on '", zero3::name_of(s.device.kind()),
                  "': layer inputs stay where they are");
  }
  if (s.moves() && s.moving() == 0) {
    return concat("layer inputs stay on the device: the last ", kPlaces, " always do, and there ",
                  s.count == 1 ? "is 1 layer" : concat("are ", s.count, " layers"));
  }
  return s.tier ? s.tier->remark() : std::string();
}

void ActivationStore::build() {
  State& s = *state_;
  ZERO3_CHECK(s.places.empty(), "an activation store is built twice");
  if (s.options.mode == CheckpointMode::kDisk)
    s.tier = make_disk_tier(s.options, s.moving(), s.bytes());
  else if (s.moving() > 0)
    s.tier = make_host_tier(s.options, s.moving(), s.bytes());
  if (s.moving() > 0) {
    s.out = s.device.make_stream({.name = "offload out"});
    s.in = s.device.make_stream({.name = "offload in"});
  }
  for (std::int64_t i = 0; i < s.place_count(); ++i)
    s.places.emplace_back(s.size, s.dtype, s.tag(), s.compute);
  s.stored.resize(static_cast<std::size_t>(s.count));
  s.loaded.resize(static_cast<std::size_t>(s.count));
}

void ActivationStore::State::drop_pass() {
  // Of a failure the rest of the pass may still be on its way; of a pass left half-way, movements
  // that compute has not waited for.
  const bool failed = tier != nullptr && tier->take_failure();
  if (moving() == 0 || (left == 0 && !failed)) return;
  for (Stream* stream : {out.get(), in.get()}) {
    try {
      stream->synchronize();
    } catch (...) {
      // It came out of the compute stream.
    }
  }
}

void ActivationStore::begin(Elements size) {
  State& s = *state_;
  ZERO3_CHECK(size <= s.size, "a pass over tensors of ", size,
              " elements in an activation store for ", s.size);
  s.drop_pass();
  s.current = size;
  s.put = s.left = 0;
}

TensorView ActivationStore::place(std::int64_t index) {
  State& s = *state_;
  s.check_index(index, "the place");
  const std::int64_t before = index - kPlaces;
  if (before >= 0 && before < std::min(s.put, s.moving()))
    s.wait(s.stored[static_cast<std::size_t>(before)]);
  return s.view(index);
}

void ActivationStore::put(std::int64_t index) {
  State& s = *state_;
  s.check_index(index, "put");
  ZERO3_CHECK(index == s.put, "put of tensor ", index, " where tensor ", s.put,
              " is next; put tensors in ascending order");
  s.left = ++s.put;
  s.lowest_loading = s.moving();
  if (index < s.moving()) s.move_out(index);
}

void ActivationStore::State::move_out(std::int64_t index) {
  // For order alone: a failure of compute is its own.
  out->wait(compute.record().order_only());
  out_timer.begin(*out);
  tier->store(index, view(index), *out);
  out_timer.end(*out);
  stored[static_cast<std::size_t>(index)] = out->record();
  (options.mode == CheckpointMode::kDisk ? moved.to_disk : moved.to_host) +=
      bytes_of(current, dtype);
}

void ActivationStore::State::move_in(std::int64_t index) {
  // The place's last reader, and, as compute has waited for it, the movement out; for order alone
  // as well.
  in->wait(compute.record().order_only());
  in_timer.begin(*in);
  tier->load(index, view(index), *in);
  in_timer.end(*in);
  loaded[static_cast<std::size_t>(index)] = in->record();
  (options.mode == CheckpointMode::kDisk ? moved.from_disk : moved.from_host) +=
      bytes_of(current, dtype);
  lowest_loading = index;
}

TensorView ActivationStore::take(std::int64_t index) {
  State& s = *state_;
  s.check_index(index, "take");
  ZERO3_CHECK(s.put == s.count, "take of tensor ", index, " after ", s.put, " of ", s.count,
              " were put; run a training forward first");
  ZERO3_CHECK(index == s.left - 1, "take of tensor ", index, " where tensor ", s.left - 1,
              " is next; take tensors once, in descending order");
  s.left = index;
  if (index < s.moving()) {
    if (index < s.lowest_loading) s.move_in(index);
    s.wait(s.loaded[static_cast<std::size_t>(index)]);
  }
  // Its place is that of the tensor above, which has been read.
  const std::int64_t below = index - 1;
  if (below >= 0 && below < s.moving()) s.move_in(below);
  return s.view(index);
}

OffloadCounters ActivationStore::counters() const {
  OffloadCounters counters = state_->moved;
  counters.moving_seconds = state_->out_timer.seconds() + state_->in_timer.seconds();
  counters.waited_seconds = state_->wait_timer.seconds();
  return counters;
}

}  // namespace zero3
