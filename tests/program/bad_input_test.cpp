#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/contains.h"
#include "support/program.h"

namespace zero3::test {
namespace {

struct BadInput {
  std::string name;
  /// DIR stands for a directory with the files below.
  std::vector<std::string> arguments;
  std::vector<std::string> said;
  int status = 2;
  std::vector<std::string> environment = {};
  friend void PrintTo(const BadInput& input, std::ostream* out) { *out << input.name; }
};

std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header =
      "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  return std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(header.size()) + '\0' + header +
         data;
}

void write_files(const TempDir& dir) {
  write_text(dir, 4000);
  dir.write("short.txt", "to be");
  dir.write("empty.txt", "");
  dir.write("floats.npy", npy("<f4", "(100,)", std::string(400, 'x')));
  dir.write("table.npy", npy("<u2", "(10, 10)", std::string(200, '\0')));
  dir.write("cut.npy", npy("<u2", "(1000,)", std::string(1999, '\0')));
  std::string large(2000, '\0');
  large[1998] = '\xff', large[1999] = '\x7f';
  dir.write("large.npy", npy("<u2", "(1000,)", large));
  const auto config = [&dir](const std::string& name, const std::string& field) {
    std::filesystem::create_directory(dir.path() / name);
    dir.write(
        name + "/config.json",
        R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
                  "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256, "rms_norm_eps": 1e-6,
                  "tie_word_embeddings": true, )" +
            field + "}");
  };
  config("scaled", R"("rope_scaling": {"rope_type": "spiral", "factor": 2.0})");
  config("window", R"("model_type": "mistral", "sliding_window": 128)");
  config("experts", R"("model_type": "mixtral", "num_local_experts": 8)");
  dir.write("run.json", R"({"step": 3})");
  dir.write("list.json", "[1]");
  dir.write("broken.json", "{");
}

std::vector<BadInput> bad_inputs() {
  const std::string text = "DIR/text.txt";
  return {
      {"NoCommand", {}, {"a command is needed", "train"}},
      {"UnknownCommand", {"trian"}, {"unknown command 'trian'", "nearest is train"}},
      {"UnknownFlag", {"train", "--bacth", "3"}, {"unknown flag --bacth", "nearest is --batch"}},
      {"UnknownFlagWithItsValue",
       {"train", "--learning-rate=1"},
       {"unknown flag --learning-rate;"}},
      {"UnexpectedArgument", {"train", "text.txt"}, {"unexpected argument 'text.txt'"}},
      {"MissingValue", {"train", "--steps"}, {"--steps"}},
      {"NoData", {"train"}, {"--data FILE"}},
      {"NoDataFile", {"train", "--data", "DIR/none.txt"}, {"none.txt", "No such file"}},
      {"DataDirectory", {"train", "--data", "DIR"}, {"is not a file"}},
      {"EmptyText", {"train", "--data", "DIR/empty.txt"}, {"empty.txt", "is empty"}},
      {"ShortText",
       {"train", "--data", "DIR/short.txt"},
       {"5 tokens", "sequences of 256 need 257"}},
      {"NoBatch", {"train", "--data", text, "--batch", "0"}, {"--batch", "'0'", "smallest is 1"}},
      {"NegativeSteps", {"train", "--data", text, "--steps", "-3"}, {"--steps", "'-3'"}},
      {"WordForANumber", {"train", "--data", text, "--seq", "long"}, {"--seq", "'long'"}},
      {"UnknownUnit",
       {"train", "--data", text, "--memory-limit", "3QB"},
       {"--memory-limit", "QB", "2GiB"}},
      {"ValidationShare",
       {"train", "--data", text, "--val-fraction", "1"},
       {"--val-fraction", "less than 1"}},
      {"OneBeta", {"train", "--data", text, "--betas", "0.9"}, {"--betas", "0.9,0.95"}},
      {"UnknownSchedule",
       {"train", "--schedule", "cosin"},
       {"--schedule", "cosin", "nearest is cosine"}},
      {"UnknownModel",
       {"train", "--data", text, "--model", "tinny"},
       {"tinny", "30m", "nearest: tiny"}},
      {"SmallVocabulary",
       {"train", "--data", "DIR/large.npy", "--seq", "8"},
       {"32767", "position 999", "vocabulary of 256"}},
      {"NpyOfFloats", {"train", "--data", "DIR/floats.npy"}, {"floats.npy", "<f4", "(100,)"}},
      {"NpyOfTwoDimensions", {"train", "--data", "DIR/table.npy"}, {"table.npy", "(10, 10)"}},
      {"NpyTruncated", {"train", "--data", "DIR/cut.npy"}, {"cut.npy", "truncated", "1999"}},
      {"ScalingType", {"train", "--data", text, "--model", "DIR/scaled"}, {"spiral"}},
      {"SlidingWindow",
       {"train", "--data", text, "--model", "DIR/window"},
       {"sliding_window", "128"}},
      {"Experts", {"train", "--data", text, "--model", "DIR/experts"}, {"mixtral"}},
      {"RankIsNoNumber",
       {"train", "--data", text},
       {"RANK", "abc"},
       2,
       {"RANK=abc", "WORLD_SIZE=1"}},
      {"RankOutsideTheWorld",
       {"train", "--data", text},
       {"RANK=3", "WORLD_SIZE=2"},
       2,
       {"RANK=3", "WORLD_SIZE=2"}},
      {"PortTooLarge", {"train", "--data", text}, {"MASTER_PORT=99999"}, 2, {"MASTER_PORT=99999"}},
      {"WorldOfTwoWithOneProcess",
       {"train", "--data", text},
       {"WORLD_SIZE=2"},
       2,
       {"WORLD_SIZE=2"}},
      {"RankOfAWorldThatIsNotHere",
       {"train", "--data", text},
       {"RANK and WORLD_SIZE", "2 ranks"},
       2,
       {"RANK=1", "WORLD_SIZE=2"}},
      {"OpenMpi",
       {"train", "--data", text},
       {"Open MPI", "4 ranks", "no launcher of Open MPI", "mpirun -n"},
       2,
       {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4"}},
      {"Slurm",
       {"train", "--data", text},
       {"Slurm", "2 ranks"},
       2,
       {"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=0"}},
      {"LocalRanksUnderALauncher",
       {"train", "--data", text, "--comm", "local", "--ranks", "2"},
       {"--ranks 2", "WORLD_SIZE=2"},
       2,
       {"RANK=0", "WORLD_SIZE=2"}},
      {"MpiBackend",
       {"train", "--data", text, "--comm", "mpi"},
       {"--comm mpi", "no launcher of Open MPI", "mpirun -n"}},
      {"NcclBackend",
       {"train", "--data", text, "--comm", "nccl"},
       {"--comm nccl", "no NCCL backend"}},
      {"SelfWithTwoRanks",
       {"train", "--data", text, "--comm", "self", "--ranks", "2"},
       {"--comm self", "--ranks 2"}},
      {"LocalWithoutRanks",
       {"train", "--data", text, "--comm", "local"},
       {"--comm local", "--ranks N"}},
      {"CudaDevice", {"train", "--data", text, "--seq", "32", "--device", "cuda"}, {"cuda"}},
      {"UnknownDevice",
       {"train", "--data", text, "--device", "gpu"},
       {"--device", "gpu", "cpu:sim"}},
      {"UnknownPlaceOfLayerInputs",
       {"train", "--data", text, "--checkpoint-activations", "ram"},
       {"--checkpoint-activations", "'ram'", "none, recompute, host, disk"}},
      {"DiskWithoutADirectory",
       {"train", "--data", text, "--checkpoint-activations", "disk"},
       {"--checkpoint-activations disk", "--offload-dir DIR"}},
      {"DirectoryWithoutDisk",
       {"train", "--data", text, "--checkpoint-activations", "host", "--offload-dir", "DIR"},
       {"--offload-dir", "--checkpoint-activations host", "give the other disk"}},
      {"NoSuchDirectory",
       {"train", "--data", text, "--seq", "32", "--checkpoint-activations", "disk", "--offload-dir",
        "DIR/none"},
       {"--offload-dir", "none", "no directory"}},
      {"DirectoryThatTakesNoFiles",
       {"train", "--data", text, "--seq", "32", "--checkpoint-activations", "disk", "--offload-dir",
        "/proc"},
       {"[rank 0]", "'/proc'", "takes no file"},
       1},
      {"HostLimitWithoutHost",
       {"train", "--data", text, "--checkpoint-activations", "recompute", "--host-limit", "1G"},
       {"--host-limit", "--checkpoint-activations recompute", "give host or disk"}},
      {"HostLimitThatIsTooSmall",
       {"train", "--data", text, "--seq", "32", "--device", "cpu:sim", "--checkpoint-activations",
        "host", "--host-limit", "1K"},
       {"--host-limit", "256.0 KiB", "1.0 KiB"}},
      {"BenchDiskWithoutADirectory",
       {"bench", "step", "--checkpoint-activations", "disk"},
       {"--offload-dir DIR"}},
      {"FlagOfALaterVersion",
       {"train", "--data", text, "--save-every", "10"},
       {"unknown flag --save-every"}},
      {"DropoutOfEverything",
       {"train", "--data", text, "--dropout", "1"},
       {"--dropout", "'1' is too large", "less than 1"}},
      {"UnknownTiles",
       {"train", "--data", text, "--tile", "small"},
       {"--tile", "'small'", "rows=R, count=N"}},
      {"MoreTilesThanRows",
       {"train", "--data", text, "--batch", "1", "--seq", "32", "--tile", "count=33"},
       {"33 tiles", "32 rows"}},
      {"MemoryLimit",
       {"train", "--data", text, "--seq", "32", "--memory-limit", "1M"},
       {"limit is 1048576", "smallest limit"}},
      {"MetricsNotWritable",
       {"train", "--data", text, "--seq", "32", "--metrics", "/nowhere/m.jsonl"},
       {"--metrics", "/nowhere/m.jsonl", "No such file"}},
      {"TraceNotWritable",
       {"train", "--data", text, "--seq", "32", "--trace", "/nowhere/t.json"},
       {"--trace", "/nowhere/t.json"}},
      {"MetricsOnAFullDevice",
       {"train", "--data", text, "--seq", "32", "--steps", "2", "--metrics", "/dev/full"},
       {"[rank 0]", "/dev/full", "No space left"},
       1},
      {"FailingLocalRank",
       {"train", "--data", text, "--seq", "32", "--steps", "2", "--metrics", "/dev/full", "--comm",
        "local", "--ranks", "3"},
       {"[rank 0]", "/dev/full"},
       1},
      {"NonFiniteGradients",
       {"train", "--data", text, "--seq", "32", "--steps", "100", "--batch", "1", "--lr", "1e38",
        "--comm", "local", "--ranks", "2"},
       {"10 steps in a row", "learning rate"},
       1},
      {"ConfigFileMissing",
       {"train", "--config", "DIR/none.json"},
       {"--config", "none.json", "No such file"}},
      {"ConfigFileUnknownKey",
       {"train", "--config", "DIR/run.json"},
       {"run.json", "'step'", "nearest is 'steps'"}},
      {"ConfigFileNoObject",
       {"train", "--config", "DIR/list.json"},
       {"list.json", "no JSON object"}},
      {"ConfigFileBroken", {"train", "--config=DIR/broken.json"}, {"broken.json", "not JSON"}},
      {"EstimateUnknownModel", {"estimate", "--model", "31m"}, {"31m", "nearest: 30m"}},
      {"BenchWithoutAPart", {"bench"}, {"a command is needed", "step, gemm, comm, optimizer"}},
      {"BenchUnknownPart", {"bench", "stp"}, {"unknown command 'stp'", "nearest is step"}},
      {"BenchTooFewSteps", {"bench", "step", "--steps", "2"}, {"--steps", "smallest is 3"}},
  };
}

class BadInputs : public ::testing::TestWithParam<BadInput> {};

TEST_P(BadInputs, IsOneOrTwoLinesAndTheExitStatus) {
  const TempDir dir;
  write_files(dir);
  std::vector<std::string> arguments = GetParam().arguments;
  for (std::string& argument : arguments) {
    if (const auto at = argument.find("DIR"); at != std::string::npos)
      argument.replace(at, 3, dir.path().string());
  }
  const Ended ended = zero3_program(
      arguments, {.environment = GetParam().environment, .limit = std::chrono::seconds(60)});
  EXPECT_EQ(ended.status, GetParam().status) << ended.err;
  EXPECT_TRUE(ended.err.starts_with("zero3: ")) << ended.err;
  EXPECT_EQ(ended.err.find("zero3: ", 1), std::string::npos) << "said twice: " << ended.err;
  const auto lines = std::count(ended.err.begin(), ended.err.end(), '\n');
  EXPECT_TRUE(lines == 1 || lines == 2) << ended.err;
  for (const std::string& part : GetParam().said) EXPECT_TRUE(contains(ended.err, {part}));
  if (GetParam().status == 2) {
    EXPECT_EQ(ended.out, "");
    EXPECT_EQ(ended.err.find("[rank"), std::string::npos) << ended.err;
  }
}

INSTANTIATE_TEST_SUITE_P(Program, BadInputs, ::testing::ValuesIn(bad_inputs()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace zero3::test
