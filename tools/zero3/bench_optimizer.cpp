#include <memory>

#include <zero3/adamw.h>
#include <zero3/buffer.h>
#include <zero3/copy.h>
#include <zero3/sgd.h>
#include "bench_commands.h"
#include "flags.h"
#include "json_records.h"
#include "line_writer.h"
#include "place.h"
#include "stopwatch.h"

namespace zero3::program {
namespace {

struct OptimizerFlags {
  std::int64_t elements = std::int64_t{1} << 24;
  PlaceFlags place;
};

void run(const OptimizerFlags& flags, const Place& place) {
  constexpr double kSeconds = 0.5;
  const std::unique_ptr<Device> device =
      make_device({.kind = place.run.device, .threads = place.run.threads});
  const std::unique_ptr<Stream> stream =
      device->make_stream({.name = "compute", .threads = place.run.threads});
  const auto zeros = [&] {
    Buffer buffer(Elements(flags.elements), DType::kF32, MemoryTag::kWorkspace, *stream);
    fill_zero(buffer.view(), *stream);
    return buffer;
  };
  const Buffer weights = zeros();
  const Buffer m = zeros();
  const Buffer v = zeros();
  const Buffer grads = zeros();
  LineWriter out("output", "-");
  const auto measure = [&](const char* name, int floats_moved, const auto& enqueue) {
    const double seconds = best_within(kSeconds, *stream, enqueue);
    const auto elements = static_cast<double>(flags.elements);
    out.write_line(Json{{"bench", "optimizer"},
                        {"op", name},
                        {"elements", flags.elements},
                        {"threads", place.run.threads},
                        {"milliseconds", one_decimal(seconds * 1e3)},
                        {"melements_per_s", one_decimal(elements / seconds * 1e-6)},
                        {"gb_per_s", one_decimal(4.0 * floats_moved * elements / seconds * 1e-9)}}
                       .dump());
  };
  // Floats read and written for an element: w, m and v both ways, and the gradient.
  measure("adamw", 7, [&] {
    adamw_step(weights.view(), m.view(), v.view(), grads.view(), {.learning_rate = 1e-3F}, *stream);
  });
  measure("sgd", 3,
          [&] { sgd_step(weights.view(), grads.view(), {.learning_rate = 1e-3F}, *stream); });
  measure("copy", 2, [&] { copy(weights.view(), grads.view(), *stream); });
}

}  // namespace

Command add_bench_optimizer(CLI::App& bench) {
  CLI::App* app =
      add_command(bench, "optimizer", "Optimizer updates and a copy, a JSON line for each");
  auto flags = std::make_shared<OptimizerFlags>();
  begin_group(*app, "Optimizer");
  add_count(*app, {"--elements", "N", "parameters of the shard"}, flags->elements, 1,
            std::int64_t{1} << 36);
  add_device_flags(*app, flags->place);
  return {app, [flags]() -> std::function<void()> {
            return [flags, place = planned_place(flags->place)] { run(*flags, place); };
          }};
}

}  // namespace zero3::program
