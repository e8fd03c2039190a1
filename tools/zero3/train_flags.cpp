#include "train_flags.h"

#include <limits>

#include <zero3/error.h>
#include "flags.h"

namespace zero3::program {
namespace {

/// Bounds under which no count of tokens or of bytes overflows 64 bits.
constexpr std::int64_t kMaxBatch = std::int64_t{1} << 16;
constexpr std::int64_t kMaxSeq = std::int64_t{1} << 24;
constexpr std::int64_t kMaxAccumulate = std::int64_t{1} << 16;
constexpr std::int64_t kMaxPrefetch = std::int64_t{1} << 16;
constexpr double kNoBound = std::numeric_limits<float>::max();

CheckpointMode parse_checkpoint_mode(const std::string& text) {
  for (const CheckpointMode mode : kCheckpointModes) {
    if (text == name_of(mode)) return mode;
  }
  fail_choice(text, {"none", "recompute", "host", "disk"});
}

void add_dropout_flag(CLI::App& app, TrainFlags& flags) {
  add_value(app,
            {"--dropout", "P", "probability of dropping what a block adds to the residual stream"},
            "0", [&flags](const std::string& text) {
              flags.base.train.dropout = static_cast<float>(parse_number_in(text, 0, 1));
            });
}

void add_data_flags(CLI::App& app, TrainFlags& flags) {
  begin_group(app, "Data");
  add_text(
      app,
      {"--data", "FILE", "plain text (bytes are tokens), or a one-dimensional .npy of token ids"},
      flags.data);
  add_number(app, {"--val-fraction", "F", "share of the data, at its end, kept for validation"},
             flags.val_fraction, 0, 1);
  add_count(app, {"--eval-every", "K", "steps between evaluations; 0: at the end alone"},
            flags.base.train.eval_every, 0);
  add_count(app, {"--eval-tokens", "T", "validation tokens of an evaluation"},
            flags.base.train.eval_tokens, 1);
}

void add_optimizer_flags(CLI::App& app, TrainFlags& flags) {
  trainer::TrainOptions& train = flags.base.train;
  begin_group(app, "Optimizer");
  add_count(app, {"--accumulate", "K", "micro-batches of a rank in one step"}, train.accumulate, 1,
            kMaxAccumulate);
  add_number(app, {"--lr", "RATE", "highest learning rate"}, train.schedule.peak, 0, kNoBound);
  add_value(
      app, {"--min-lr", "RATE", "learning rate at the last step of linear and cosine"}, "lr / 10",
      [&flags](const std::string& text) { flags.min_lr = parse_number_in(text, 0, kNoBound); });
  add_count(app, {"--warmup", "STEPS", "steps until the highest learning rate"},
            train.schedule.warmup, 0);
  add_choice(app, {"--schedule", "", "learning rate after the warmup"}, train.schedule.kind,
             {{"constant", LrSchedule::Kind::kConstant},
              {"linear", LrSchedule::Kind::kLinear},
              {"cosine", LrSchedule::Kind::kCosine}});
  add_choice(app, {"--optimizer", "", "how weights follow gradients"}, train.optimizer,
             {{"adamw", OptimizerKind::kAdamW}, {"sgd", OptimizerKind::kSgd}});
  add_value(app, {"--betas", "B1,B2", "decay of AdamW's moments"}, "0.9,0.95",
            [&train](const std::string& text) {
              const std::size_t comma = text.find(',');
              ZERO3_CHECK(comma != std::string::npos, "'", text,
                          "' is not two numbers such as 0.9,0.95");
              train.beta1 = static_cast<float>(parse_number_in(text.substr(0, comma), 0, 1));
              train.beta2 = static_cast<float>(parse_number_in(text.substr(comma + 1), 0, 1));
            });
  add_number(app, {"--eps", "E", "added to the root of AdamW's second moment"}, train.eps, 0, 1);
  add_number(app, {"--weight-decay", "D", "of matrices; norms, biases and embeddings do not decay"},
             train.weight_decay, 0, kNoBound);
  add_number(app, {"--clip", "NORM", "largest norm of the gradient; 0: off"}, train.clip, 0,
             kNoBound);
}

void add_memory_flags(CLI::App& app, TrainFlags& flags) {
  trainer::TrainOptions& train = flags.base.train;
  begin_group(app, "Memory and movement");
  add_count(app, {"--prefetch", "K", "layers gathered ahead"}, train.prefetch, 0, kMaxPrefetch);
  add_value(app,
            {"--keep-gathered-below", "ELEMENTS", "smaller layers stay gathered during a step"},
            "0", [&train](const std::string& text) {
              train.keep_gathered_below = Elements(parse_size(text));
            });
  add_value(app, {"--memory-limit", "SIZE", "refuse a memory plan of a rank above this"}, "none",
            [&flags](const std::string& text) { flags.memory_limit = Bytes(parse_size(text)); });
}

}  // namespace

void add_model_flags(CLI::App& app, ModelFlags& flags, std::int64_t least_steps) {
  begin_group(app, "Model and batch");
  add_text(app,
           {"--model", "NAME|DIR",
            "tiny, 30m, 100m, 135m, or a directory with a Hugging Face config.json"},
           flags.model);
  add_count(app, {"--steps", "N", "optimizer steps"}, flags.train.steps, least_steps);
  add_count(app, {"--batch", "B", "sequences of a rank in a micro-batch"},
            flags.train.micro_batch.batch, 1, kMaxBatch);
  add_count(app, {"--seq", "S", "tokens of a sequence"}, flags.train.micro_batch.seq, 1, kMaxSeq);
  add_choice(app, {"--dtype", "", "of gathered weights and matrix products"}, flags.train.dtype,
             {{"fp32", DType::kF32}, {"bf16", DType::kBF16}});
  add_value(app,
            {"--checkpoint-activations", "none|recompute|host|disk",
             "where layer inputs wait for the backward, for which layers run again"},
            "none", [&flags](const std::string& text) {
              flags.train.checkpoints.mode = parse_checkpoint_mode(text);
            });
  add_text(app,
           {"--offload-dir", "DIR", "where layer inputs wait with --checkpoint-activations disk"},
           flags.train.checkpoints.directory);
  add_value(app, {"--host-limit", "SIZE", "most host memory that a rank's layer inputs take"},
            "none", [&flags](const std::string& text) {
              flags.train.checkpoints.host_limit = Bytes(parse_size(text));
            });
  add_value(app,
            {"--tile", "auto|none|rows=R|count=N|seq/hidden",
             "tiles of rows in which MLP, norms and projections are computed"},
            "auto",
            [&flags](const std::string& text) { flags.train.tile = parse_tile_policy(text); });
}

void add_train_flags(CLI::App& app, TrainFlags& flags) {
  LrSchedule& schedule = flags.base.train.schedule;
  schedule.kind = LrSchedule::Kind::kCosine;
  add_model_flags(app, flags.base);
  add_count(app, {"--seed", "S", "of weights, data order and dropout"}, flags.base.train.seed, 0,
            std::numeric_limits<std::int64_t>::max());
  add_dropout_flag(app, flags);
  add_data_flags(app, flags);
  add_optimizer_flags(app, flags);
  add_place_flags(app, flags.place);
  add_memory_flags(app, flags);
  begin_group(app, "Output");
  add_text(app, {"--metrics", "FILE", "JSON lines, one per step; - is standard output"},
           flags.metrics);
  add_text(
      app,
      {"--trace", "FILE",
       "what ran when on each stream, as Chrome trace JSON; under mpirun FILE.rank1.json and so on "
       "for the other ranks"},
      flags.trace);
  // Its flags are put in front of the given ones before parsing.
  add_value(app, {"--config", "FILE", "JSON whose keys are flags' names; flags win"}, "",
            [](const std::string&) {});
}

void check_checkpoint_flags(const ActivationCheckpoints& checkpoints) {
  const std::string_view mode = name_of(checkpoints.mode);
  const bool disk = checkpoints.mode == CheckpointMode::kDisk;
  ZERO3_CHECK(disk || checkpoints.directory.empty(),
              "--offload-dir is for layer inputs that wait on disk, and they wait with ",
              "--checkpoint-activations ", mode, "; leave one out, or give the other disk");
  ZERO3_CHECK(!disk || !checkpoints.directory.empty(),
              "--checkpoint-activations disk needs a directory; add --offload-dir DIR");
  ZERO3_CHECK(disk || checkpoints.mode == CheckpointMode::kHost ||
                  checkpoints.host_limit == Bytes(INT64_MAX),
              "--host-limit bounds layer inputs outside of the device, and they wait with ",
              "--checkpoint-activations ", mode, "; leave it out, or give host or disk");
}

trainer::TrainOptions train_options(const TrainFlags& flags) {
  trainer::TrainOptions options = flags.base.train;
  check_checkpoint_flags(options.checkpoints);
  options.schedule.steps = options.steps;
  options.schedule.minimum = flags.min_lr.value_or(options.schedule.peak / 10);
  return options;
}

}  // namespace zero3::program
