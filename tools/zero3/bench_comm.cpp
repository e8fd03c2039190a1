#include <memory>
#include <utility>

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
  std::int64_t elements = std::int64_t{1} << 22;
  PlaceFlags place;
};

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
        full_bf16_(zeros(shard * communicator.world_size(), DType::kBF16)) {}

  void run(LineWriter* out) {
    trainer::run_or_abort(communicator_, [&] { run_all(out); });
  }

 private:
  void run_all(LineWriter* out) {
    measure(out, CollectiveOp::kAllGather, DType::kF32,
            [&] { communicator_.all_gather(full_.view(), shard_.view(), "bench", *stream_); });
    measure(out, CollectiveOp::kAllGather, DType::kBF16,
            [&] { communicator_.all_gather(full_bf16_.view(), shard_.view(), "bench", *stream_); });
    measure(out, CollectiveOp::kReduceScatter, DType::kF32, [&] {
      communicator_.reduce_scatter(shard_.view(), full_.view(), {}, "bench", *stream_);
    });
    measure(out, CollectiveOp::kAllReduce, DType::kF32,
            [&] { communicator_.all_reduce(shard_.view(), "bench", *stream_); });
    measure(out, CollectiveOp::kBarrier, DType::kF32,
            [&] { communicator_.barrier("bench", *stream_); });
  }

  [[nodiscard]] Buffer zeros(std::int64_t count, DType dtype) {
    Buffer buffer(Elements(count), dtype, MemoryTag::kWorkspace, *stream_);
    fill_zero(buffer.view(), *stream_);
    return buffer;
  }

  template <class F>
  void measure(LineWriter* out, CollectiveOp op, DType dtype, const F& enqueue) {
    const Bytes before = communicator_.counters()[op].bytes;
    const double seconds = best_of(kCalls, *stream_, enqueue);
    const Bytes received = (communicator_.counters()[op].bytes - before) / (kCalls + 1);
    if (out == nullptr) return;
    out->write_line(
        Json{{"bench", "comm"},
             {"op", name_of(op)},
             {"dtype", name_of(dtype)},
             {"ranks", communicator_.world_size()},
             {"received_bytes", received.count()},
             {"microseconds", one_decimal(seconds * 1e6)},
             {"gb_per_s", one_decimal(static_cast<double>(received.count()) / seconds * 1e-9)}}
            .dump());
  }

  Communicator& communicator_;
  std::unique_ptr<Stream> stream_;
  Buffer shard_, full_, full_bf16_;
};

std::function<void()> prepare(CommFlags flags) {
  const bool alone = resolve_launch(read_environment()).world_size == 1;
  if (alone && flags.place.ranks == 0 && flags.place.comm == CommChoice::kAuto) {
    flags.place.ranks = 2;
  }
  const Place place = resolve_place(flags.place, read_environment());
  return [place, shard = div_ceil(flags.elements, place.run.ranks)] {
    LineWriter out("output", "-");
    run_ranks(place, {}, [&](Device& device, Communicator& communicator) {
      CommBench(device, communicator, shard).run(communicator.rank() == 0 ? &out : nullptr);
    });
  };
}

}  // namespace

Command add_bench_comm(CLI::App& bench) {
  CLI::App* app = add_command(
      bench, "comm", "Collectives between ranks (2 unless told otherwise), a JSON line for each");
  auto flags = std::make_shared<CommFlags>();
  begin_group(*app, "Collectives");
  add_count(*app, {"--elements", "N", "elements of a group of parameters"}, flags->elements, 1,
            std::int64_t{1} << 36);
  add_place_flags(*app, flags->place);
  return {app, [flags] { return prepare(*flags); }};
}

}  // namespace zero3::program
