#pragma once

#include <optional>
#include <string>

#include <zero3/trainer/rank_trainer.h>
#include "place.h"

namespace CLI {
class App;
}  // namespace CLI

namespace zero3::program {

/// What the flags of a model and its optimizer steps say; those of a training are more.
struct ModelFlags {
  std::string model = "tiny";
  trainer::TrainOptions train;
};
/// --model --batch --seq --dtype --steps --checkpoint-activations --offload-dir --host-limit
/// --tile.
void add_model_flags(CLI::App& app, ModelFlags& flags, std::int64_t least_steps = 1);
/// Throws UsageError for flags of layer inputs that contradict each other.
void check_checkpoint_flags(const ActivationCheckpoints& checkpoints);

/// What the flags of a training say.
struct TrainFlags {
  ModelFlags base;
  PlaceFlags place;
  std::string data;
  double val_fraction = 0.05;
  /// Nothing: a tenth of the learning rate.
  std::optional<double> min_lr;
  Bytes memory_limit{INT64_MAX};
  /// Empty: none. "-" is standard output.
  std::string metrics;
  std::string trace;
};
void add_train_flags(CLI::App& app, TrainFlags& flags);

/// The options that the flags stand for.
[[nodiscard]] trainer::TrainOptions train_options(const TrainFlags& flags);

}  // namespace zero3::program
