#include <zero3/trainer/train_loop.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include <zero3/error.h>
#include <zero3/trainer/process_memory.h>

namespace zero3::trainer {
namespace {

using Clock = std::chrono::steady_clock;

/// The first sequences of the validation tail, formed into micro-batches as those of training;
/// places that the last one has left over count nothing.
class Validation {
 public:
  Validation(const TokenData& data, const TrainOptions& options)
      : data_(data),
        batch_(options.micro_batch.batch),
        seq_(static_cast<std::size_t>(options.micro_batch.seq)),
        sequences_(std::min(
            data.validation_sequences(),
            std::max<std::int64_t>(1, div_ceil(options.eval_tokens, options.micro_batch.seq)))) {}

  [[nodiscard]] std::optional<double> evaluate(RankTrainer& trainer) const {
    if (sequences_ == 0) return std::nullopt;
    return trainer.evaluate(div_ceil(sequences_, batch_),
                            [this](std::int64_t j, std::span<std::int32_t> inputs,
                                   std::span<std::int32_t> targets) { fill(j, inputs, targets); });
  }

 private:
  void fill(std::int64_t j, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    for (std::int64_t row = 0; row < batch_; ++row) {
      const std::int64_t index = j * batch_ + row;
      const auto into_inputs = inputs.subspan(static_cast<std::size_t>(row) * seq_, seq_);
      const auto into_targets = targets.subspan(static_cast<std::size_t>(row) * seq_, seq_);
      if (index < sequences_) {
        data_.validation_sequence(index, into_inputs, into_targets);
      } else {
        std::fill(into_inputs.begin(), into_inputs.end(), 0);
        std::fill(into_targets.begin(), into_targets.end(), kIgnoreToken);
      }
    }
  }

  const TokenData& data_;
  std::int64_t batch_;
  std::size_t seq_;
  std::int64_t sequences_;
};

StepRecord run_step(RankTrainer& trainer, const TrainOptions& options, const TokenData& data,
                    std::int64_t step) {
  const double learning_rate = options.schedule.at(step);
  const Clock::time_point begin = Clock::now();
  const StepResult result = trainer.step(
      learning_rate,
      [&](std::int64_t j, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
        data.training_batch(step, j, inputs, targets);
      });
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const auto tokens = static_cast<double>(result.tokens);
  return {.step = step + 1,
          .loss = result.loss_sum / tokens,
          .grad_norm = result.grad_norm,
          .learning_rate = learning_rate,
          .tokens = result.tokens,
          .tokens_per_s = tokens / seconds,
          .step_ms = seconds * 1e3,
          .val_loss = std::nullopt,
          .skipped = result.applied ? "" : result.reason};
}

/// Peak of the rank that had most in use.
MemoryByTag largest_peak(Engine& engine, const MemoryByTag& own) {
  std::vector<double> values;
  for (const Bytes bytes : own.bytes) values.push_back(static_cast<double>(bytes.count()));
  const std::vector<double> all = engine.gather_values(values, "peaks");
  MemoryByTag largest;
  for (std::size_t rank = 0; rank * kMemoryTagCount < all.size(); ++rank) {
    MemoryByTag peak;
    for (std::size_t tag = 0; tag < kMemoryTagCount; ++tag) {
      peak.bytes[tag] = Bytes(static_cast<std::int64_t>(all[rank * kMemoryTagCount + tag]));
    }
    if (peak.total() > largest.total()) largest = peak;
  }
  return largest;
}

void run_steps(RankTrainer& trainer, const TrainOptions& options, const TokenData& data,
               TrainSink* sink, DoneRecord& done) {
  const Validation validation(data, options);
  std::int64_t tokens = 0;
  int skipped_in_a_row = 0;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    StepRecord record = run_step(trainer, options, data, step);
    record.tokens = tokens += record.tokens;
    const bool due = options.eval_every > 0 && record.step % options.eval_every == 0;
    if (due || record.step == options.steps)
      record.val_loss = done.val_loss = validation.evaluate(trainer);
    if (sink != nullptr) sink->on_step(record);
    skipped_in_a_row = record.skipped.empty() ? 0 : skipped_in_a_row + 1;
    if (skipped_in_a_row == kMaxSkippedSteps) {
      throw Error(concat(kMaxSkippedSteps, " steps in a row were skipped, the last one because: ",
                         record.skipped, "; lower the learning rate"));
    }
  }
  trainer.engine().synchronize();
}

}  // namespace

void train(Device& device, Communicator& communicator, const LlamaConfig& config,
           const TrainOptions& options, const TokenData& data, TrainSink* sink) {
  RankTrainer trainer(device, communicator, config, options);
  DoneRecord done = {.steps = options.steps,
                     .val_loss = std::nullopt,
                     .peak = {},
                     .planned = trainer.plan(),
                     .peak_rss = Bytes(0),
                     .comm = {},
                     .offload = {},
                     .host_checkpoints = Bytes(0),
                     .planned_host_checkpoints = trainer.layer_inputs().host_bytes(),
                     .tiles = trainer.tiles()};
  run_or_abort(communicator, [&] {
    trainer.build();
    const std::string remark = trainer.layer_inputs().remark();
    if (sink != nullptr && !remark.empty()) sink->on_remark(remark);
    run_steps(trainer, options, data, sink, done);
    done.comm = trainer.engine().comm_counters();
    done.offload = trainer.layer_inputs().counters();
    done.host_checkpoints = trainer.layer_inputs().host_bytes_in_use();
    done.weights_checksum = trainer.engine().weights_checksum();
    done.peak = largest_peak(trainer.engine(), device.stats().peak());
    done.peak_rss = largest_peak_resident_memory(trainer.engine());
    if (sink != nullptr) sink->on_done(done);
  });
}

}  // namespace zero3::trainer
