#include <zero3/trainer/rank_trainer.h>

#include <algorithm>
#include <exception>
#include <utility>

#include <zero3/error.h>
#include <zero3/trainer/llama_block.h>

namespace zero3::trainer {

EngineOptions engine_options(const TrainOptions& options) {
  const OptimizerGroup decayed = {.beta1 = options.beta1,
                                  .beta2 = options.beta2,
                                  .eps = options.eps,
                                  .weight_decay = options.weight_decay};
  std::vector<OptimizerGroup> groups(2, decayed);
  groups[kNotDecayed].weight_decay = 0;
  return {.precision = {.param = options.dtype, .reduce = DType::kF32},
          .optimizer = options.optimizer,
          .optimizer_groups = std::move(groups),
          .clip = options.clip,
          .micro_steps = options.accumulate,
          .prefetch = options.prefetch,
          .keep_gathered_below = options.keep_gathered_below,
          .seed = options.seed};
}

LlamaOptions llama_options(const TrainOptions& options) {
  return {.tokens = options.micro_batch,
          .dtype = options.dtype,
          .checkpoints = options.checkpoints,
          .tile = options.tile,
          .dropout = options.dropout,
          .seed = options.seed};
}

void run_or_abort(Communicator& communicator, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    communicator.abort(error.what());
    throw;
  }
}

RankTrainer::RankTrainer(Device& device, Communicator& communicator, const LlamaConfig& config,
                         const TrainOptions& options)
    : options_(options),
      engine_(device, communicator, engine_options(options)),
      model_(engine_, config, llama_options(options)) {}

void RankTrainer::build() {
  engine_.build();
  model_.build();
  const auto rows = static_cast<std::size_t>(options_.micro_batch.rows());
  inputs_.resize(rows);
  targets_.resize(rows);
}

StepResult RankTrainer::step(double learning_rate, const FillMicroBatch& fill) {
  for (int micro_step = 0; micro_step < options_.accumulate; ++micro_step) {
    const std::int64_t j = std::int64_t{micro_step} * engine_.world_size() + engine_.rank();
    fill(j, inputs_, targets_);
    MicroStep scope = engine_.begin_micro_step();
    model_.train(scope, inputs_, targets_, options_.micro_batch,
                 {.step = step_, .first_token = j * options_.micro_batch.rows()});
    scope.end();
  }
  ++step_;
  return engine_.step({.learning_rate = static_cast<float>(learning_rate)});
}

double RankTrainer::evaluate(std::int64_t micro_batches, const FillMicroBatch& fill) {
  const std::int64_t ranks = engine_.world_size();
  const std::int64_t rounds = div_ceil(micro_batches, ranks);
  std::vector<double> losses;
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::int64_t j = round * ranks + engine_.rank();
    if (j < micro_batches) {
      fill(j, inputs_, targets_);
    } else {
      std::fill(inputs_.begin(), inputs_.end(), 0);
      std::fill(targets_.begin(), targets_.end(), kIgnoreToken);
    }
    const LlamaModel::Loss loss = model_.evaluate(inputs_, targets_, options_.micro_batch);
    losses.push_back(loss.sum);
    losses.push_back(static_cast<double>(loss.tokens));
  }
  const std::vector<double> all = engine_.gather_values(losses, "evaluation");
  double sum = 0;
  double tokens = 0;
  for (std::int64_t j = 0; j < micro_batches; ++j) {
    const auto at = static_cast<std::size_t>(2 * (j % ranks * rounds + j / ranks));
    sum += all[at];
    tokens += all[at + 1];
  }
  return sum / tokens;
}

}  // namespace zero3::trainer
