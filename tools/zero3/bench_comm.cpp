#include <array>
#include <memory>
#include <utility>
#include <vector>

#include <zero3/buffer.h>
#include <zero3/copy.h>
#include <zero3/trainer/rank_trainer.h>
#include "bench_commands.h"
#include "flags.h"
#include "json_records.h"
#include "line_writer.h"
#include "place.h"
#include "stopwatch.h"

namespace zero3::program {
namespace {

struct CommFlags {
  /// 0: several sizes.
  std::int64_t elements = 0;
  PlaceFlags place;
};

constexpr std::array<std::int64_t, 4> kSizes = {1 << 12, 1 << 16, 1 << 20, 1 << 24};
/// Ranks count calls and not time: all of them must make equally many.
constexpr int kCalls = 20;

/// One rank's end of a group, with what its collectives work on.
class CommBench {
 public:
  CommBench(Device& device, Communicator& communicator, std::int64_t shard)
      : communicator_(communicator),
        stream_(device.make_stream({.name = "comm"})),
        shard_(zeros(shard, DType::kF32)),
        full_(zeros(shard * communicator.world_size(), DType::kF32)),
        full_bf16_(zeros(shard * communicator.world_size(), DType::kBF16)),
        copy_(zeros(shard * communicator.world_size(), DType::kF32)) {}

  void run(LineWriter* out) {
    trainer::run_or_abort(communicator_, [&] { run_all(out); });
  }

 private:
  void run_all(LineWriter* out) {
    const double part = static_cast<double>(shard_.view().bytes().count());
    const double whole = static_cast<double>(full_.view().bytes().count());
    // What a memory has to move at least: a gather copies all parts, a reduction reads as many and
    // writes one.
    measure(out, CollectiveOp::kAllGather, DType::kF32, whole,
            [&] { communicator_.all_gather(full_.view(), shard_.view(), "bench", *stream_); });
    measure(out, CollectiveOp::kAllGather, DType::kBF16, (whole + whole / 2) / 2,
            [&] { communicator_.all_gather(full_bf16_.view(), shard_.view(), "bench", *stream_); });
    measure(out, CollectiveOp::kReduceScatter, DType::kF32, (whole + part) / 2, [&] {
      communicator_.reduce_scatter(shard_.view(), full_.view(), {}, "bench", *stream_);
    });
    measure(out, CollectiveOp::kAllReduce, DType::kF32, 0,
            [&] { communicator_.all_reduce(shard_.view(), "bench", *stream_); });
    measure(out, CollectiveOp::kBarrier, DType::kF32, 0,
            [&] { communicator_.barrier("bench", *stream_); });
  }

  [[nodiscard]] Buffer zeros(std::int64_t count, DType dtype) {
    Buffer buffer(Elements(count), dtype, MemoryTag::kWorkspace, *stream_);
    fill_zero(buffer.view(), *stream_);
    return buffer;
  }

  /// `copied`: bytes for whose copy, by all ranks at once, the memory takes as long; 0: not shown.
  template <class F>
  void measure(LineWriter* out, CollectiveOp op, DType dtype, double copied, const F& enqueue) {
    const Bytes before = communicator_.counters()[op].bytes;
    const double seconds = best_of(kCalls, *stream_, enqueue);
    const Bytes received = (communicator_.counters()[op].bytes - before) / (kCalls + 1);
    const double copy_seconds =
        best_of(kCalls, *stream_, [&] { copy(copy_.view(), full_.view(), *stream_); });
    if (out == nullptr) return;
    Json json = {{"bench", "comm"},
                 {"op", name_of(op)},
                 {"dtype", name_of(dtype)},
                 {"ranks", communicator_.world_size()},
                 {"received_bytes", received.count()},
                 {"microseconds", one_decimal(seconds * 1e6)},
                 {"gb_per_s", one_decimal(static_cast<double>(received.count()) / seconds * 1e-9)}};
    if (copied > 0) {
      const double copy_rate = static_cast<double>(copy_.view().bytes().count()) / copy_seconds;
      json["of_copy_rate"] = two_decimals(copied / seconds / copy_rate);
    }
    out->write_line(json.dump());
  }

  Communicator& communicator_;
  std::unique_ptr<Stream> stream_;
  Buffer shard_, full_, full_bf16_, copy_;
};

std::function<void()> prepare(CommFlags flags) {
  const bool alone = resolve_launch(read_environment()).world_size == 1;
  if (alone && flags.place.ranks == 0 && flags.place.comm == CommChoice::kAuto) {
    flags.place.ranks = 2;
  }
  const Place place = resolve_place(flags.place, read_environment());
  std::vector<std::int64_t> sizes(kSizes.begin(), kSizes.end());
  if (flags.elements > 0) sizes = {flags.elements};
  return [place, sizes] {
    LineWriter out("output", "-");
    run_ranks(place, {}, [&](Device& device, Communicator& communicator) {
      LineWriter* lines = communicator.rank() == 0 ? &out : nullptr;
      for (const std::int64_t size : sizes) {
        CommBench(device, communicator, div_ceil(size, place.run.ranks)).run(lines);
      }
    });
  };
}

}  // namespace

Command add_bench_comm(CLI::App& bench) {
  CLI::App* app = add_command(
      bench, "comm", "Collectives between ranks (2 unless told otherwise), a JSON line for each");
  auto flags = std::make_shared<CommFlags>();
  begin_group(*app, "Collectives");
  add_count(*app,
            {"--elements", "N", "elements of a group of parameters; several sizes unless given"},
            flags->elements, 1, std::int64_t{1} << 36);
  add_place_flags(*app, flags->place);
  return {app, [flags] { return prepare(*flags); }};
}

}  // namespace zero3::program
