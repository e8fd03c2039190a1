#include "commands.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <zero3/trainer/token_data.h>
#include <zero3/trainer/train_loop.h>
#include "flags.h"
#include "matrix_peak.h"
#include "progress.h"
#include "quantities.h"
#include "train_flags.h"

namespace zero3::program {
namespace {

/// Everything that a run needs, found right before it starts.
struct TrainJob {
  TrainFlags flags;
  trainer::LlamaConfig config;
  trainer::TrainOptions options;
  Place place;
  trainer::RunPlan plan;
  std::unique_ptr<trainer::TokenData> data;
  std::unique_ptr<trainer::TrainSink> sink;
  std::unique_ptr<Trace> trace;
  std::string trace_file;
};

/// Each process writes one: "t.json" is that of rank 0, "t.rank1.json" that of rank 1.
std::string trace_file(const std::string& given, const Place& place) {
  if (place.reports()) return given;
  std::filesystem::path path = given;
  const std::string extension = path.extension();
  return path.replace_extension(concat("rank", place.launch->rank, extension));
}

RunTitle title_of(const TrainJob& job) {
  const trainer::TrainOptions& options = job.options;
  return {.text = fmt::format(
              "{}: {:.1f} M parameters, {}; {} of {}; steps of {} x {} x {} tokens in {}; "
              "memory plan {} a rank",
              job.flags.base.model, static_cast<double>(job.plan.parameters) * 1e-6,
              name_of(options.dtype), counted(job.place.run.ranks, "rank"),
              counted(job.place.run.threads, "thread"), job.place.run.ranks * options.accumulate,
              options.micro_batch.batch, options.micro_batch.seq, counted(job.plan.tiles, "tile"),
              concat(job.plan.memory.total())),
          .steps = options.steps,
          .flops_per_step = job.plan.model_flops,
          .peak_flops = measure_matrix_peak(options.dtype, job.place.run)};
}

std::unique_ptr<trainer::TrainSink> make_sink(const TrainJob& job) {
  const std::string& metrics = job.flags.metrics;
  // mpirun puts a terminal of its own between a rank and wherever the output really goes.
  const bool terminal = isatty(STDOUT_FILENO) == 1 && metrics != "-" && !job.place.behind_launcher;
  std::vector<std::unique_ptr<LineWriter>> lines;
  if (!terminal) lines.push_back(std::make_unique<LineWriter>("output", "-"));
  if (!metrics.empty() && metrics != "-")
    lines.push_back(std::make_unique<LineWriter>("--metrics", metrics));
  auto json = std::make_unique<JsonLines>(std::move(lines));
  std::unique_ptr<TerminalProgress> progress;
  if (terminal) {
    progress = std::make_unique<TerminalProgress>(title_of(job),
                                                  std::make_unique<LineWriter>("output", "-"));
  }
  return std::make_unique<BothSinks>(std::move(progress), std::move(json));
}

/// What the ranks would find out as well, after work.
void check_layer_inputs(const TrainJob& job) {
  const ActivationCheckpoints& checkpoints = job.options.checkpoints;
  ZERO3_CHECK(checkpoints.directory.empty() || std::filesystem::is_directory(checkpoints.directory),
              "--offload-dir '", checkpoints.directory, "' is no directory; create it");
  ZERO3_CHECK(job.plan.host_checkpoints <= checkpoints.host_limit, "layer inputs need ",
              job.plan.host_checkpoints, " of host memory on each rank and --host-limit is ",
              checkpoints.host_limit, "; raise it, or make sequence or batch smaller");
}

std::shared_ptr<TrainJob> prepare(const TrainFlags& flags) {
  auto job = std::make_shared<TrainJob>();
  job->flags = flags;
  job->options = train_options(flags);
  job->place = resolve_place(flags.place, read_environment());
  job->config = trainer::resolve_config(flags.base.model);
  ZERO3_CHECK(!flags.data.empty(), "train needs a text or tokens to learn; add --data FILE");
  job->data = std::make_unique<trainer::TokenData>(
      flags.data, trainer::TokenDataOptions{.val_fraction = flags.val_fraction,
                                            .seq = job->options.micro_batch.seq,
                                            .vocab = job->config.vocab,
                                            .seed = job->options.seed});
  job->plan = trainer::plan_run(job->config, job->options, job->place.run);
  check_plan(job->plan.memory, flags.memory_limit);
  check_layer_inputs(*job);
  if (!flags.trace.empty()) {
    job->trace_file = trace_file(flags.trace, job->place);
    static_cast<void>(LineWriter("--trace", job->trace_file));  // Found out now, not after the work
    job->trace = std::make_unique<Trace>();
  }
  if (job->place.reports()) job->sink = make_sink(*job);
  return job;
}

void run(const TrainJob& job) {
  run_ranks(job.place, {.memory_limit = job.flags.memory_limit, .trace = job.trace.get()},
            [&job](Device& device, Communicator& communicator) {
              trainer::TrainSink* sink = communicator.rank() == 0 ? job.sink.get() : nullptr;
              trainer::train(device, communicator, job.config, job.options, *job.data, sink);
            });
  if (job.trace) job.trace->write_json(job.trace_file);
}

}  // namespace

Command add_train_command(CLI::App& program) {
  CLI::App* app = add_command(program, "train", "Train a model on a text");
  auto flags = std::make_shared<TrainFlags>();
  add_train_flags(*app, *flags);
  return {app,
          [flags]() -> std::function<void()> { return [job = prepare(*flags)] { run(*job); }; }};
}

}  // namespace zero3::program
