#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include <zero3/philox.h>
#include <zero3/trainer/process_memory.h>
#include <zero3/trainer/run_plan.h>
#include "bench_commands.h"
#include "flags.h"
#include "json_records.h"
#include "line_writer.h"
#include "train_flags.h"

namespace zero3::program {
namespace {

/// Steps that prepare products and touch memory for the first time, and are not counted.
constexpr std::size_t kWarmupSteps = 2;

struct StepBench {
  ModelFlags flags;
  trainer::LlamaConfig config;
  Place place;
  trainer::RunPlan plan;
};

struct Measured {
  std::vector<double> seconds, losses;
  Bytes peak_rss{0};
};

/// Uniform over the vocabulary; row after row of seq + 1 tokens, of which the first seq are inputs.
void fill_randomly(const StepBench& bench, std::int64_t step, std::int64_t j,
                   std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
  constexpr std::uint32_t kPurpose = 0x62656E63U;
  const PhiloxKey key = philox_key(bench.flags.train.seed, kPurpose);
  const std::int64_t seq = bench.flags.train.micro_batch.seq;
  const auto token = [&](std::int64_t row, std::int64_t column) {
    const PhiloxCounter counter = {static_cast<std::uint32_t>(column),
                                   static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(j),
                                   static_cast<std::uint32_t>(step)};
    return static_cast<std::int32_t>(philox(counter, key)[0] %
                                     static_cast<std::uint64_t>(bench.config.vocab));
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / seq;
    const auto column = static_cast<std::int64_t>(i) % seq;
    inputs[i] = token(row, column);
    targets[i] = token(row, column + 1);
  }
}

void run_steps(const StepBench& bench, trainer::RankTrainer& trainer, Measured& measured) {
  trainer.build();
  for (std::int64_t step = 0; step < bench.flags.train.steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    const StepResult result = trainer.step(
        bench.flags.train.schedule.peak,
        [&](std::int64_t j, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
          fill_randomly(bench, step, j, inputs, targets);
        });
    trainer.engine().synchronize();
    measured.seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    measured.losses.push_back(result.loss_sum / static_cast<double>(result.tokens));
  }
}

Measured measure(const StepBench& bench, Device& device, Communicator& communicator) {
  trainer::RankTrainer trainer(device, communicator, bench.config, bench.flags.train);
  Measured measured;
  trainer::run_or_abort(communicator, [&] {
    run_steps(bench, trainer, measured);
    measured.peak_rss = trainer::largest_peak_resident_memory(trainer.engine());
  });
  return measured;
}

double median_after_warmup(std::vector<double> seconds) {
  seconds.erase(seconds.begin(), seconds.begin() + kWarmupSteps);
  std::sort(seconds.begin(), seconds.end());
  const std::size_t half = seconds.size() / 2;
  return seconds.size() % 2 == 1 ? seconds[half] : (seconds[half - 1] + seconds[half]) / 2;
}

std::string report(const StepBench& bench, const Measured& measured) {
  const trainer::TrainOptions& options = bench.flags.train;
  const double seconds = median_after_warmup(measured.seconds);
  const auto tokens = static_cast<double>(options.micro_batch.rows() * bench.place.run.ranks);
  const Json json = {{"peer", "zero3 " ZERO3_VERSION},
                     {"shape", bench.flags.model},
                     {"params", bench.plan.parameters},
                     {"dtype", name_of(options.dtype)},
                     {"ranks", bench.place.run.ranks},
                     {"threads_per_rank", bench.place.run.threads},
                     {"batch", options.micro_batch.batch},
                     {"seq", options.micro_batch.seq},
                     {"checkpoint", options.checkpoints.recompute()},
                     {"step_ms", one_decimal(seconds * 1e3)},
                     {"tokens_per_s", one_decimal(tokens / seconds)},
                     {"gflops", one_decimal(bench.plan.model_flops / seconds * 1e-9)},
                     {"peak_rss_mib", mebibytes(measured.peak_rss)},
                     {"losses", measured.losses}};
  return json.dump();
}

struct StepFlags {
  ModelFlags model;
  PlaceFlags place;
};

std::function<void()> prepare(const StepFlags& flags) {
  auto bench = std::make_shared<StepBench>();
  check_checkpoint_flags(flags.model.train.checkpoints);
  bench->flags = flags.model;
  bench->place = resolve_place(flags.place, read_environment());
  bench->config = trainer::resolve_config(flags.model.model);
  bench->plan = trainer::plan_run(bench->config, flags.model.train, bench->place.run);
  return [bench] {
    Measured measured;
    run_ranks(bench->place, {}, [&](Device& device, Communicator& communicator) {
      Measured own = measure(*bench, device, communicator);
      if (communicator.rank() == 0) measured = std::move(own);
    });
    if (bench->place.reports()) LineWriter("output", "-").write_line(report(*bench, measured));
  };
}

}  // namespace

Command add_bench_step(CLI::App& bench) {
  CLI::App* app = add_command(bench, "step", "Median time of optimizer steps on random tokens");
  auto flags = std::make_shared<StepFlags>();
  flags->model.model = "30m";
  flags->model.train.micro_batch = {.batch = 4, .seq = 256};
  flags->model.train.steps = 8;
  flags->model.train.schedule.peak = 3e-4;
  add_model_flags(*app, flags->model, kWarmupSteps + 1);
  add_place_flags(*app, flags->place);
  return {app, [flags] { return prepare(*flags); }};
}

}  // namespace zero3::program
