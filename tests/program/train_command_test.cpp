#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <zero3/error.h>
#include "support/contains.h"
#include "support/program.h"

namespace zero3::test {
namespace {

class TrainCommand : public ::testing::Test {
 protected:
  [[nodiscard]] TrainOutput train(const std::vector<std::string>& more,
                                  const SpawnOptions& options = {}) const {
    return train_tiny(text_, more, options);
  }

  TempDir dir_;
  std::string text_ = write_text(dir_, 20000);
};

TEST_F(TrainCommand, PrintsALineForEachStepAndOneAtTheEnd) {
  const TrainOutput output = train({});
  ASSERT_EQ(output.steps.size(), 3U);
  EXPECT_EQ(keys_of(output.steps[0]),
            (std::vector<std::string>{"step", "loss", "grad_norm", "learning_rate", "tokens",
                                      "tokens_per_s", "step_ms"}));
  EXPECT_EQ(keys_of(output.steps[1]).back(), "val_loss");
  EXPECT_EQ(keys_of(output.done),
            (std::vector<std::string>{"done", "steps", "val_loss", "weights_checksum",
                                      "peak_rss_mib", "peak_bytes", "planned_bytes", "comm",
                                      "offloaded_bytes", "offload_ms", "tiles"}));
  EXPECT_EQ(keys_of(output.done["peak_bytes"]),
            (std::vector<std::string>{"shards", "gathered", "grads", "optimizer", "activations",
                                      "checkpoints", "workspace"}));
  EXPECT_EQ(keys_of(output.done["comm"]),
            (std::vector<std::string>{"all_gather", "reduce_scatter", "all_reduce"}));
  EXPECT_EQ(output.done["weights_checksum"].get<std::string>().size(), 16U);
  EXPECT_EQ(output.steps[2]["tokens"], 3 * 2 * 33);
}

TEST_F(TrainCommand, FirstLossIsThatOfAnEvenGuess) {
  EXPECT_NEAR(train({}).steps[0]["loss"].get<double>(), std::log(256.0), 0.1);
}

TEST_F(TrainCommand, SameCommandGivesTheSameBits) {
  const TrainOutput first = train({});
  const TrainOutput second = train({});
  EXPECT_EQ(first.timeless(), second.timeless());
  EXPECT_EQ(first.done["weights_checksum"], second.done["weights_checksum"]);
}

TEST_F(TrainCommand, WorldOfOneInTheEnvironmentChangesNothing) {
  const TrainOutput alone = train({});
  const TrainOutput launched =
      train({}, {.environment = {"WORLD_SIZE=1", "LOCAL_RANK=0", "MASTER_ADDR=0.0.0.0",
                                 "MASTER_PORT=29500"}});
  EXPECT_EQ(launched.timeless(), alone.timeless());
  EXPECT_EQ(launched.done["weights_checksum"], alone.done["weights_checksum"]);
  EXPECT_EQ(launched.done["comm"], alone.done["comm"]);
}

TEST_F(TrainCommand, OpensNoSocket) {
  std::set<std::string> seen;
  const auto watch = [&seen](pid_t process) {
    std::error_code gone;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd", gone)) {
      seen.insert(std::filesystem::read_symlink(entry.path(), gone).string());
    }
  };
  static_cast<void>(train(
      {"--steps", "20"},
      {.environment = {"WORLD_SIZE=1", "LOCAL_RANK=0", "MASTER_ADDR=0.0.0.0", "MASTER_PORT=29500"},
       .watch = watch}));
  EXPECT_TRUE(seen.contains("/dev/null")) << "the process was never seen";
  for (const std::string& target : seen) EXPECT_FALSE(target.starts_with("socket:")) << target;
}

struct Numbers {
  const char* name;
  std::vector<std::string> flags;
  friend void PrintTo(const Numbers& numbers, std::ostream* out) { *out << numbers.name; }
};
class LocalRanks : public ::testing::TestWithParam<Numbers> {};

TEST_P(LocalRanks, GiveTheBitsOfOneProcess) {
  const TempDir dir;
  const std::string text = write_text(dir, 20000);
  const auto train = [&](int ranks, int micro_batches) {
    std::vector<std::string> flags = {"--comm",       "local",
                                      "--ranks",      std::to_string(ranks),
                                      "--accumulate", std::to_string(micro_batches / ranks)};
    flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
    return train_tiny(text, flags);
  };
  for (const auto& [micro_batches, worlds] :
       {std::pair{12, std::vector{2, 3, 4}}, std::pair{7, std::vector{7}}}) {
    const TrainOutput alone = train(1, micro_batches);
    for (const int ranks : worlds) {
      const TrainOutput together = train(ranks, micro_batches);
      EXPECT_EQ(together.timeless(), alone.timeless()) << ranks;
      EXPECT_EQ(together.done["val_loss"], alone.done["val_loss"]) << ranks;
      EXPECT_EQ(together.done["weights_checksum"], alone.done["weights_checksum"]) << ranks;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    TrainCommand, LocalRanks,
    ::testing::Values(Numbers{"Fp32", {}}, Numbers{"Bf16", {"--dtype", "bf16"}},
                      Numbers{"Dropout", {"--dropout", "0.2"}},
                      Numbers{"Bf16Recompute",
                              {"--dtype", "bf16", "--checkpoint-activations", "recompute"}}),
    [](const auto& test) { return test.param.name; });

TEST_F(TrainCommand, OneRankReceivesNothing) {
  const TrainOutput output = train({});
  EXPECT_EQ(output.done["comm"]["all_gather"]["bytes"], 0);
  EXPECT_EQ(output.done["comm"]["reduce_scatter"]["bytes"], 0);
}

TEST_F(TrainCommand, TilesAndRecomputationChangeMemoryAlone) {
  const auto run = [&](const char* dtype, const char* checkpoints, const char* tile) {
    return train({"--dropout", "0.1", "--dtype", dtype, "--checkpoint-activations", checkpoints,
                  "--tile", tile, "--seq", "700", "--eval-tokens", "1400"});
  };
  for (const char* dtype : {"fp32", "bf16"}) {
    const TrainOutput want = run(dtype, "none", "none");
    for (const char* checkpoints : {"none", "recompute"}) {
      for (const char* tile : {"auto", "rows=256", "count=3", "seq/hidden"}) {
        const TrainOutput got = run(dtype, checkpoints, tile);
        EXPECT_EQ(got.timeless(), want.timeless()) << dtype << checkpoints << tile;
        EXPECT_EQ(got.done["weights_checksum"], want.done["weights_checksum"])
            << dtype << checkpoints << tile;
        EXPECT_EQ(got.done["peak_bytes"], got.done["planned_bytes"]) << checkpoints << tile;
      }
    }
  }
}

TEST_F(TrainCommand, LayerInputsThatMoveAreReported) {
  const std::vector<std::string> flags = {
      "--model", "30m", "--device", "cpu:sim", "--checkpoint-activations", "recompute"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), flags.begin(), flags.end());
    return train(more);
  };
  const TrainOutput kept = run({});
  EXPECT_EQ(kept.done["offloaded_bytes"], Json({{"to_host", 0}, {"to_disk", 0}}));
  EXPECT_FALSE(kept.done["planned_bytes"].contains("host_checkpoints"));
  const std::int64_t layers = 6, hidden = 384;
  const std::int64_t input = kept.done["planned_bytes"]["checkpoints"].get<std::int64_t>() / layers;
  const std::int64_t moved = 3 * (layers - 2) * 2 * 33 * hidden * 4;
  const TrainOutput host = run({"--checkpoint-activations", "host"});
  const TrainOutput disk =
      run({"--checkpoint-activations", "disk", "--offload-dir", dir_.path().string()});
  EXPECT_EQ(host.done["offloaded_bytes"], Json({{"to_host", moved}, {"to_disk", 0}}));
  EXPECT_EQ(disk.done["offloaded_bytes"], Json({{"to_host", 0}, {"to_disk", moved}}));
  for (const TrainOutput* output : {&host, &disk}) {
    EXPECT_EQ(output->timeless(), kept.timeless());
    EXPECT_EQ(output->done["weights_checksum"], kept.done["weights_checksum"]);
    EXPECT_EQ(output->done["peak_bytes"], output->done["planned_bytes"]);
    EXPECT_EQ(output->done["planned_bytes"]["checkpoints"], 2 * input);
    EXPECT_GT(output->done["planned_bytes"]["host_checkpoints"], 0);
    EXPECT_GT(output->done["offload_ms"]["moving"], 0);
  }
}

// E9: on, and nothing moves.
TEST_F(TrainCommand, LayerInputsThatDoNotMoveAreExplained) {
  const auto said = [&](const char* device, const char* model) {
    const Ended ended = zero3_program({"train", "--data", text_, "--steps", "1", "--batch", "1",
                                       "--seq", "33", "--eval-tokens", "33", "--model", model,
                                       "--device", device, "--checkpoint-activations", "host"});
    EXPECT_EQ(parse_training(ended).done["offloaded_bytes"]["to_host"] == 0, !ended.err.empty());
    return ended.err;
  };
  EXPECT_TRUE(contains(said("cpu", "30m"), {"zero3: ", "host and device are one memory on 'cpu'"}));
  EXPECT_EQ(said("cpu:sim", "30m"), "");
}

using PlannedRun = std::tuple<const char*, int, const char*>;  ///< Model, ranks, checkpoints
class PlannedPeak : public ::testing::TestWithParam<PlannedRun> {};

TEST_P(PlannedPeak, IsMeasuredTagByTagAndTheProcessStaysNearIt) {
  const auto [model, ranks, checkpoints] = GetParam();
  const TempDir dir;
  const TrainOutput output =
      train_tiny(write_text(dir, 20000),
                 {"--model", model, "--ranks", std::to_string(ranks), "--checkpoint-activations",
                  checkpoints, "--seq", "128", "--steps", "2", "--eval-tokens", "256"});
  EXPECT_EQ(output.done["peak_bytes"], output.done["planned_bytes"]);
  std::int64_t planned = 0;
  for (const auto& [tag, bytes] : output.done["planned_bytes"].items())
    planned += bytes.get<std::int64_t>();
  EXPECT_LE(output.done["peak_rss_mib"].get<std::int64_t>(), ((planned * ranks) >> 20) + 120);
}

std::string run_name(const ::testing::TestParamInfo<PlannedRun>& test) {
  const auto [model, ranks, checkpoints] = test.param;
  return concat("Of_", model, "_on_", ranks, "_", checkpoints);
}
INSTANTIATE_TEST_SUITE_P(TrainCommand, PlannedPeak,
                         ::testing::Combine(::testing::Values("tiny", "30m"),
                                            ::testing::Values(1, 2, 4),
                                            ::testing::Values("none", "recompute", "host")),
                         run_name);

TEST_F(TrainCommand, StatesAreSplitBetweenRanks) {
  const Json one = train({}).done["peak_bytes"];
  const Json four = train({"--ranks", "4"}).done["peak_bytes"];
  for (const char* tag : {"shards", "optimizer"}) {
    EXPECT_NEAR(one[tag].get<double>() / four[tag].get<double>(), 4.0, 0.1) << tag;
  }
}

TEST_F(TrainCommand, MetricsFileHasTheLinesOfStandardOutput) {
  const std::string metrics = (dir_.path() / "metrics.jsonl").string();
  const TrainOutput output = train({"--metrics", metrics});
  std::string lines;
  for (const std::string& line : output.lines) lines += line + "\n";
  EXPECT_EQ(content_of(metrics), lines);
}

TEST_F(TrainCommand, MetricsOnStandardOutputAreThereOnce) {
  EXPECT_EQ(train({"--metrics", "-"}).lines.size(), 4U);
}

TEST_F(TrainCommand, TraceHasARowForEachStreamOfEachRank) {
  const std::string path = (dir_.path() / "trace.json").string();
  static_cast<void>(train({"--ranks", "2", "--trace", path}));
  std::set<std::pair<int, std::string>> rows;
  const Json trace = Json::parse(content_of(path));
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "M" && event["name"] == "thread_name") {
      rows.emplace(event["pid"].get<int>(), event["args"]["name"].get<std::string>());
    }
  }
  for (const int rank : {0, 1}) {
    for (const char* stream : {"compute", "gather", "reduce"}) {
      EXPECT_TRUE(rows.contains({rank, stream})) << rank << ' ' << stream;
    }
  }
}

TEST_F(TrainCommand, ConfigFileSpeaksForFlags) {
  const std::string config =
      dir_.write("run.json",
                 R"({"steps": 2, "lr": 0.01, "betas": [0.8, 0.9], "schedule": "constant"})")
          .string();
  std::vector<std::string> arguments = {"train", "--data", text_,       "--batch", "1",
                                        "--seq", "16",     "--threads", "1"};
  std::vector<std::string> with_file = arguments;
  with_file.insert(with_file.end(), {"--config", config});
  std::vector<std::string> with_flags = arguments;
  with_flags.insert(with_flags.end(), {"--steps", "2", "--lr", "0.01", "--betas", "0.8,0.9",
                                       "--schedule", "constant"});
  const TrainOutput by_file = parse_training(zero3_program(with_file));
  EXPECT_EQ(by_file.timeless(), parse_training(zero3_program(with_flags)).timeless());
  EXPECT_EQ(by_file.steps.size(), 2U);
}

TEST_F(TrainCommand, FlagsWinOverTheConfigFile) {
  const std::string config = dir_.write("run.json", R"({"steps": 2})").string();
  EXPECT_EQ(train({"--config", config, "--steps", "1"}).steps.size(), 1U);
}

TEST_F(TrainCommand, SimulatedDeviceGivesTheSameBits) {
  EXPECT_EQ(train({"--device", "cpu:sim"}).timeless(), train({}).timeless());
}

TEST_F(TrainCommand, SmallestLimitThatIsNamedWorks) {
  const std::vector<std::string> arguments = {"train",   "--data", text_,     "--seq", "16",
                                              "--batch", "1",      "--steps", "1"};
  const auto with_limit = [&](const std::string& limit) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--memory-limit", limit});
    return zero3_program(all);
  };
  const std::string refusal = with_limit("1K").err;
  const std::string phrase = "smallest limit that works is ";
  ASSERT_TRUE(contains(refusal, {phrase}));
  const std::int64_t smallest = std::stoll(refusal.substr(refusal.find(phrase) + phrase.size()));
  EXPECT_EQ(with_limit(std::to_string(smallest)).status, 0);
  EXPECT_EQ(with_limit(std::to_string(smallest - 1)).status, 2);
}

TEST_F(TrainCommand, LearnsALanguageOfTwoWords) {
  std::string text;
  for (std::uint32_t i = 0; i < 4000; ++i)
    text += philox({i}, {5, 6})[0] % 2 == 0 ? "love " : "hate ";
  const std::string path = dir_.write("words.txt", text).string();
  const TrainOutput output = parse_training(
      zero3_program({"train", "--data", path, "--steps", "60", "--batch", "4", "--seq", "64",
                     "--lr", "3e-3", "--warmup", "5", "--eval-tokens", "1K"}));
  // One bit for each word of five letters.
  EXPECT_LT(output.done["val_loss"].get<double>(), 1.5 * std::log(2.0) / 5);
}

}  // namespace
}  // namespace zero3::test
