#pragma once

#include <optional>
#include <string>
#include <vector>

#include <zero3/local_world.h>
#include <zero3/philox.h>
#include <zero3/trainer/train_loop.h>
#include "support/temp_dir.h"
#include "support/toy_llama.h"

namespace zero3::test {

/// What a training said.
struct Records {
  std::vector<std::string> remarks;
  std::vector<trainer::StepRecord> steps;
  std::optional<trainer::DoneRecord> done;
};

class RecordingSink final : public trainer::TrainSink {
 public:
  void on_remark(std::string_view remark) override { records.remarks.emplace_back(remark); }
  void on_step(const trainer::StepRecord& record) override { records.steps.push_back(record); }
  void on_done(const trainer::DoneRecord& record) override { records.done = record; }

  Records records;
};

/// Tokens of toy_config()'s vocabulary, drawn at random, in a file.
inline std::filesystem::path write_toy_text(const TempDir& dir, std::uint32_t count) {
  std::string text;
  for (std::uint32_t i = 0; i < count; ++i) text += static_cast<char>(philox({i}, {1, 2})[0] % 13);
  return dir.write("toy.txt", text);
}

/// A run of a few steps of a toy model, whose sizes no number of ranks divides.
struct ToyRun {
  trainer::LlamaConfig config = toy_config();
  trainer::TrainOptions options = {.steps = 3,
                                   .micro_batch = {.batch = 2, .seq = 9},
                                   .schedule = {.peak = 1e-2, .steps = 3},
                                   .clip = 0.1F,
                                   .eval_every = 2,
                                   .eval_tokens = 81};
  DeviceKind device = DeviceKind::kCpu;
  std::uint32_t text = 2000;
  double val_fraction = 0.1;
};

/// Rank 0's records of a training by `ranks` ranks.
inline Records train_toy(const ToyRun& run, int ranks = 1) {
  const TempDir dir;
  const trainer::TokenData data(write_toy_text(dir, run.text), {.val_fraction = run.val_fraction,
                                                                .seq = run.options.micro_batch.seq,
                                                                .vocab = run.config.vocab,
                                                                .seed = run.options.seed});
  RecordingSink sink;
  LocalWorld(ranks).run([&](Communicator& communicator) {
    const std::unique_ptr<Device> device = make_device({.kind = run.device,
                                                        .threads = 1,
                                                        .capacity = Bytes(1 << 28),
                                                        .poison = true,
                                                        .rank = communicator.rank()});
    trainer::train(*device, communicator, run.config, run.options, data,
                   communicator.rank() == 0 ? &sink : nullptr);
  });
  return sink.records;
}

}  // namespace zero3::test
