// Where layer inputs wait and in what tiles layers run changes no bit of a training, and its peak
// is its plan in every such mode.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <zero3/trace.h>
#include <zero3/trainer/train_loop.h>
#include "support/contains.h"
#include "support/recorded_training.h"
#include "support/temp_dir.h"

namespace zero3::trainer {
namespace {

using test::Records;
using test::TempDir;
using test::ToyRun;
using test::train_toy;

constexpr const char* kAllTiles[] = {"auto", "none", "rows=256", "count=3", "seq/hidden"};

struct Model {
  const char* name;
  DType dtype = DType::kF32;
  float dropout = 0;
  bool tied = false;
  bool biases = false;
  /// Rows that are no multiple of a granule.
  TokenShape micro_batch = {.batch = 2, .seq = 290};
  friend void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }
};

class SameBits : public testing::TestWithParam<Model> {
 protected:
  /// `micro_batches` a step, dealt out to the ranks.
  Records train(int ranks, CheckpointMode mode, const std::string& tile, DeviceKind device,
                int micro_batches) {
    ToyRun run;
    run.device = device;
    run.text = 9000;
    run.config.layers = 4;
    run.config.tied = GetParam().tied;
    run.config.qkv_bias = run.config.output_bias = GetParam().biases;
    TrainOptions& options = run.options;
    options.steps = 2;
    options.micro_batch = GetParam().micro_batch;
    options.accumulate = micro_batches / ranks;
    options.dtype = GetParam().dtype;
    options.dropout = GetParam().dropout;
    options.checkpoints.mode = mode;
    if (mode == CheckpointMode::kDisk) options.checkpoints.directory = dir_.path().string();
    options.tile = parse_tile_policy(tile);
    return train_toy(run, ranks);
  }
  static void expect_same(const Records& got, const Records& want, const std::string& what) {
    ASSERT_EQ(got.steps.size(), want.steps.size()) << what;
    for (std::size_t i = 0; i < want.steps.size(); ++i) {
      EXPECT_EQ(got.steps[i].loss, want.steps[i].loss) << what << ", step " << i + 1;
      EXPECT_EQ(got.steps[i].grad_norm, want.steps[i].grad_norm) << what << ", step " << i + 1;
    }
    EXPECT_EQ(got.done->val_loss, want.done->val_loss) << what;
    EXPECT_EQ(got.done->weights_checksum, want.done->weights_checksum) << what;
  }
  static void expect_peak_is_plan(const Records& got, const std::string& what) {
    EXPECT_EQ(got.done->peak, got.done->planned)
        << what << '\n'
        << to_table(got.done->peak) << to_table(got.done->planned);
    EXPECT_EQ(got.done->host_checkpoints, got.done->planned_host_checkpoints) << what;
  }

 private:
  TempDir dir_;
};

TEST_P(SameBits, InEveryPlaceAndTile) {
  const Records want = train(1, CheckpointMode::kNone, "none", DeviceKind::kCpu, 1);
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCpuSim}) {
    for (const CheckpointMode mode : kCheckpointModes) {
      for (const char* tile : kAllTiles) {
        const Records got = train(1, mode, tile, device, 1);
        const std::string what = concat(name_of(device), ", ", name_of(mode), ", ", tile);
        expect_same(got, want, what);
        expect_peak_is_plan(got, what);
      }
    }
  }
}

TEST_P(SameBits, ForEveryNumberOfRanks) {
  for (const int micro_batches : {6, 3}) {
    const Records want = train(1, CheckpointMode::kNone, "none", DeviceKind::kCpu, micro_batches);
    std::size_t next = 0;
    for (const int ranks : {1, 2, 3}) {
      if (micro_batches % ranks != 0) continue;
      for (const CheckpointMode mode : kCheckpointModes) {
        const char* tile = kAllTiles[next++ % std::size(kAllTiles)];
        const Records got = train(ranks, mode, tile, DeviceKind::kCpuSim, micro_batches);
        const std::string what = concat(ranks, " ranks, ", name_of(mode), ", ", tile);
        expect_same(got, want, what);
        expect_peak_is_plan(got, what);
      }
    }
  }
}

// E9
TEST_P(SameBits, WithInputsAndBytesMovedAsPlanned) {
  const TokenShape batch = GetParam().micro_batch;
  const Bytes input = bytes_of(Elements(batch.rows() * 24), GetParam().dtype);
  const Records kept = train(1, CheckpointMode::kRecompute, "auto", DeviceKind::kCpuSim, 3);
  for (const CheckpointMode mode : {CheckpointMode::kHost, CheckpointMode::kDisk}) {
    const Records got = train(1, mode, "auto", DeviceKind::kCpuSim, 3);
    const OffloadCounters& moved = got.done->offload;
    const bool disk = mode == CheckpointMode::kDisk;
    // Two steps of three micro-batches, of four layers the first two; evaluations move nothing.
    const Bytes want = input * (2 * 3 * 2);
    EXPECT_EQ(disk ? moved.to_disk : moved.to_host, want);
    EXPECT_EQ(disk ? moved.from_disk : moved.from_host, want);
    EXPECT_EQ(disk ? moved.to_host : moved.to_disk, Bytes(0));
    EXPECT_EQ(kept.done->peak[MemoryTag::kCheckpoints] - got.done->peak[MemoryTag::kCheckpoints],
              aligned(input) * 2);
    EXPECT_EQ(kept.done->peak.total() - got.done->peak.total(), aligned(input) * 2);
  }
  const Records one_memory = train(1, CheckpointMode::kHost, "auto", DeviceKind::kCpu, 3);
  EXPECT_EQ(one_memory.done->offload.to_host, Bytes(0));
  ASSERT_EQ(one_memory.remarks.size(), 1U);
  EXPECT_TRUE(test::contains(one_memory.remarks[0], {"host and device are one memory"}));
}

INSTANTIATE_TEST_SUITE_P(
    Models, SameBits,
    testing::Values(
        Model{.name = "Fp32"}, Model{.name = "Bf16", .dtype = DType::kBF16},
        Model{.name = "Fp32Dropout", .dropout = 0.2F, .tied = true},
        Model{.name = "Bf16DropoutBiases", .dtype = DType::kBF16, .dropout = 0.1F, .biases = true},
        Model{.name = "OneLongSequence", .biases = true, .micro_batch = {.batch = 1, .seq = 600}}),
    [](const auto& test) { return test.param.name; });

// H8: matrix products of a layer in forward, recomputation and backward, one tile.
TEST(Products, OfARecomputedMlpAreElevenAndNotTwelve) {
  const auto products = [](CheckpointMode mode) {
    Trace trace;
    ToyRun run;
    run.config.layers = 1;
    run.options.checkpoints.mode = mode;
    const auto device = make_device({.threads = 1, .trace = &trace});
    const auto communicator = make_self_communicator();
    RankTrainer trainer(*device, *communicator, run.config, run.options);
    trainer.build();
    trainer.step(1e-3,
                 [](std::int64_t, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
                   std::fill(inputs.begin(), inputs.end(), 1);
                   std::fill(targets.begin(), targets.end(), 2);
                 });
    trainer.engine().synchronize();
    const std::vector<Trace::Span> spans = trace.spans();
    return std::count_if(spans.begin(), spans.end(), [](const Trace::Span& span) {
      return span.name.starts_with("gemm") && span.name != "gemm backward bias";
    });
  };
  // Of q, k, v, the attention's output, gate, up, down and the head: one forward, two backward.
  EXPECT_EQ(products(CheckpointMode::kNone), 3 * (4 + 3 + 1));
  // And again q, k, v, output, gate and up: for the MLP 9 + 2.
  EXPECT_EQ(products(CheckpointMode::kRecompute), 3 * (4 + 3 + 1) + 4 + 2);
}

// The bits of the program's own shape at a length of several tiles; every mode with another tile.
TEST(SameBitsOfTiny, AtTwoThousandTokens) {
  const TempDir dir;
  ToyRun run;
  run.config = resolve_config("tiny");
  run.text = 30000;
  run.options.steps = 2;
  run.options.micro_batch = {.batch = 1, .seq = 2000};
  run.options.eval_every = 0;
  run.options.eval_tokens = 2000;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    run.options.dtype = dtype;
    run.options.checkpoints = {};
    run.options.tile = parse_tile_policy("none");
    const Records want = train_toy(run);
    std::size_t next = 0;
    for (const CheckpointMode mode : kCheckpointModes) {
      run.options.checkpoints.mode = mode;
      run.options.checkpoints.directory = mode == CheckpointMode::kDisk ? dir.path().string() : "";
      run.options.tile = parse_tile_policy(kAllTiles[++next]);
      const Records got = train_toy(run);
      EXPECT_EQ(got.done->weights_checksum, want.done->weights_checksum) << name_of(mode);
      EXPECT_EQ(got.done->val_loss, want.done->val_loss) << name_of(mode);
      EXPECT_EQ(got.done->peak, got.done->planned) << name_of(mode);
    }
  }
}

}  // namespace
}  // namespace zero3::trainer
