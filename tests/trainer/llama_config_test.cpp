#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <zero3/error.h>
#include <zero3/trainer/llama_config.h>

#include "support/contains.h"
#include "support/thrown.h"

namespace zero3::trainer {
namespace {

using test::contains;
using test::thrown;

/// A directory with a config.json, gone at the end.
class ModelDirectory {
 public:
  explicit ModelDirectory(const std::string& config) {
    std::string pattern = (std::filesystem::temp_directory_path() / "zero3-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw IoError("mkdtemp failed");
    path = pattern;
    std::ofstream(path / "config.json") << config;
  }
  ~ModelDirectory() { std::filesystem::remove_all(path); }
  ModelDirectory(const ModelDirectory&) = delete;
  ModelDirectory& operator=(const ModelDirectory&) = delete;

  std::filesystem::path path;
};

LlamaConfig load(const std::string& text) {
  return load_config(ModelDirectory(text).path);
}

constexpr const char* kSizes =
    R"("hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
       "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100)";

/// A good config of `type` with more fields.
std::string config_text(const std::string& type, const std::string& more) {
  const std::string window = type == "mistral" ? R"(, "sliding_window": null)" : "";
  return concat(R"({"model_type": ")", type, "\", ", kSizes, window, more.empty() ? "" : ", ", more,
                "}");
}
std::string llama(const std::string& more) {
  return config_text("llama", more);
}

// Sizes as published with the models; counts as their weight files hold.

TEST(LlamaConfig, CountsLlama32Of1B) {
  const LlamaConfig config = load(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "use_cache": true, "vocab_size": 128256})");
  EXPECT_EQ(parameter_count(config), 1235814400);
  EXPECT_EQ(config.rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(config.rope.original_max_position, 8192);
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.rms_norm_eps, 1e-5F);
}

TEST(LlamaConfig, CountsQwen25Of05B) {
  const LlamaConfig config = load(R"({
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
    "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2",
    "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": true, "use_mrope": false, "use_sliding_window": false,
    "vocab_size": 151936})");
  EXPECT_EQ(parameter_count(config), 494032768);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.output_bias);
}

TEST(LlamaConfig, CountsQwen3Of06B) {
  const LlamaConfig config = load(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
    "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
    "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
    "vocab_size": 151936})");
  EXPECT_EQ(parameter_count(config), 596049920);
  EXPECT_TRUE(config.qk_norm);
}

TEST(LlamaConfig, CountsMistral03Of7B) {
  const LlamaConfig config = load(R"({
    "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32768})");
  EXPECT_EQ(parameter_count(config), 7248023552);
}

TEST(LlamaConfig, NamedShapeOf135mCountsAsItsModelOnTheHub) {
  EXPECT_EQ(parameter_count(named_config("135m")), 134515008);
}

TEST(LlamaConfig, EveryNameHasAValidShape) {
  for (const std::string& name : named_configs()) {
    EXPECT_NO_THROW(validate(named_config(name))) << name;
    EXPECT_TRUE(named_config(name).tied) << name;
  }
}

TEST(LlamaConfig, UnknownNameListsNamesAndTheNearest) {
  EXPECT_TRUE(contains(thrown<UsageError>([] { static_cast<void>(named_config("30M")); }),
                       {"'30M'", "tiny, 30m, 100m, 135m", "nearest: 30m"}));
}

TEST(LlamaConfig, NamesAndPathsAreResolved) {
  const ModelDirectory directory(llama(""));
  EXPECT_EQ(resolve_config("tiny").hidden, 128);
  EXPECT_EQ(resolve_config(directory.path.string()).hidden, 64);
  EXPECT_EQ(resolve_config((directory.path / "config.json").string()).hidden, 64);
  EXPECT_TRUE(contains(thrown<UsageError>([] { static_cast<void>(resolve_config("tinny")); }),
                       {"'tinny'", "nearest: tiny", "no directory or file"}));
}

TEST(LlamaConfig, DirectoryWithWeightsIsRefused) {
  const ModelDirectory directory(llama(""));
  EXPECT_NO_THROW(refuse_weights(directory.path));
  std::ofstream(directory.path / "model.safetensors") << "x";
  EXPECT_TRUE(contains(
      thrown<UsageError>([&] { static_cast<void>(resolve_config(directory.path.string())); }),
      {directory.path.string(), "model.safetensors", "cannot be loaded yet", "config.json alone"}));
}

TEST(LlamaConfig, DefaultsAreThoseOfHuggingFace) {
  const LlamaConfig config =
      load(R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
               "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100})");
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rms_norm_eps, 1e-6F);
  EXPECT_EQ(config.initializer_range, 0.02F);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_FALSE(config.tied);
  EXPECT_FALSE(config.qkv_bias);
}

TEST(LlamaConfig, Qwen3HeadsHave128ChannelsUnlessSaid) {
  EXPECT_EQ(load(config_text("qwen3", "")).head_dim, 128);
  EXPECT_EQ(load(config_text("qwen3", R"("head_dim": 32)")).head_dim, 32);
}

TEST(LlamaConfig, LlamaWithAttentionBiasHasAllFour) {
  const LlamaConfig config = load(llama(R"("attention_bias": true)"));
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_TRUE(config.output_bias);
  EXPECT_EQ(parameter_count(config), parameter_count(load(llama(""))) + 2 * (64 + 2 * 32 + 64));
}

TEST(LlamaConfig, BothSpellingsOfRopeMeanTheSame) {
  for (const char* spelling :
       {R"("rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.5})",
        R"("rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.5})"}) {
    const RopeConfig rope = load(llama(spelling)).rope;
    EXPECT_EQ(rope.scaling, RopeConfig::Scaling::kLinear) << spelling;
    EXPECT_EQ(rope.theta, 5e5) << spelling;
    EXPECT_EQ(rope.factor, 2.5) << spelling;
    EXPECT_EQ(rope.head_dim, 16) << spelling;
  }
}

TEST(LlamaConfig, YarnTakesItsAttentionFactorFromWhatIsGiven) {
  const auto factor = [](const std::string& more) {
    return load(llama(concat(R"("rope_scaling": {"type": "yarn", "factor": 4.0)", more, "}")))
        .rope.attention_factor;
  };
  EXPECT_EQ(factor(""), 0.0);
  EXPECT_EQ(factor(R"(, "attention_factor": 1.5)"), 1.5);
  EXPECT_NEAR(factor(R"(, "mscale": 2.0, "mscale_all_dim": 1.0)"),
              (0.2 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1), 1e-12);
}

TEST(LlamaConfig, YarnScalesFromTheModelsLengthUnlessSaid) {
  const std::string yarn = R"("rope_scaling": {"type": "yarn", "factor": 4.0)";
  EXPECT_EQ(load(llama(yarn + "}")).rope.original_max_position, 2048);
  EXPECT_EQ(load(llama(yarn + R"(, "original_max_position_embeddings": 512})"))
                .rope.original_max_position,
            512);
  EXPECT_EQ(load(llama(yarn + R"(}, "original_max_position_embeddings": 256)"))
                .rope.original_max_position,
            256);
}

TEST(LlamaConfig, FieldsWithoutEffectAreAccepted) {
  EXPECT_NO_THROW(static_cast<void>(
      load(llama(R"("use_cache": false, "torch_dtype": "bfloat16", "pretraining_tp": 1,
                    "attention_dropout": 0.0, "mlp_bias": false, "quantization_config": null,
                    "partial_rotary_factor": 1.0, "rope_scaling": null, "sliding_window": null,
                    "layer_types": ["full_attention", "full_attention"])"))));
  EXPECT_NO_THROW(static_cast<void>(
      load(config_text("qwen2", R"("sliding_window": 4096, "use_sliding_window": false)"))));
}

struct Refused {
  const char* type;
  /// Further fields, and what the message must name besides the file.
  const char* fields;
  const char* field;
  const char* value;
};

class RefusedConfig : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedConfig, NamesFieldValueAndFile) {
  const Refused& refused = GetParam();
  const ModelDirectory directory(config_text(refused.type, refused.fields));
  const std::string error =
      thrown<UsageError>([&] { static_cast<void>(load_config(directory.path)); });
  EXPECT_TRUE(contains(error, {refused.field, refused.value, "config.json"}));
}

INSTANTIATE_TEST_SUITE_P(
    OtherMathematics, RefusedConfig,
    ::testing::Values(
        Refused{"gpt2", "", "model_type", "\"gpt2\""},
        Refused{"llama", R"("architectures": ["LlamaForSequenceClassification"])", "architectures",
                "LlamaForSequenceClassification"},
        Refused{"qwen2", R"("architectures": ["LlamaForCausalLM"])", "architectures",
                "Qwen2ForCausalLM"},
        Refused{"llama", R"("hidden_act": "gelu")", "hidden_act", "\"gelu\""},
        Refused{"llama", R"("attention_dropout": 0.1)", "attention_dropout", "0.1"},
        Refused{"llama", R"("mlp_bias": true)", "mlp_bias", "true"},
        Refused{"llama", R"("pretraining_tp": 2)", "pretraining_tp", "2"},
        Refused{"llama", R"("quantization_config": {"bits": 4})", "quantization_config", "bits"},
        Refused{"llama", R"("partial_rotary_factor": 0.5)", "partial_rotary_factor", "0.5"},
        Refused{"llama", R"("num_local_experts": 8)", "num_local_experts", "8"},
        Refused{"qwen3", R"("num_experts": 64)", "num_experts", "64"},
        Refused{"llama", R"("final_logit_softcapping": 30.0)", "final_logit_softcapping", "30.0"},
        Refused{"llama", R"("sliding_window": 4096)", "sliding_window", "4096"},
        Refused{"mistral", R"("sliding_window": 4096)", "sliding_window", "4096"},
        Refused{"mistral", R"("attention_bias": true)", "attention_bias", "true"},
        Refused{"qwen2", R"("use_sliding_window": true)", "use_sliding_window", "true"},
        Refused{"qwen2", R"("attention_bias": false)", "attention_bias", "false"},
        Refused{"qwen3", R"("layer_types": ["full_attention", "sliding_attention"])", "layer_types",
                "sliding_attention"},
        Refused{"llama", R"("rope_scaling": {"type": "dynamic", "factor": 2.0})",
                "rope_scaling.type", "dynamic"},
        Refused{"llama", R"("rope_parameters": {"rope_type": "longrope"})",
                "rope_parameters.rope_type", "longrope"},
        Refused{"llama", R"("rope_scaling": {"type": "linear", "factor": 2.0, "ntk_alpha": 3})",
                "rope_scaling.ntk_alpha", "3"},
        Refused{"llama", R"("rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": false})",
                "rope_scaling.truncate", "false"},
        Refused{"llama",
                R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25})",
                "rope_parameters.partial_rotary_factor", "0.25"}));

INSTANTIATE_TEST_SUITE_P(
    WrongValues, RefusedConfig,
    ::testing::Values(
        Refused{"llama", R"("hidden_size": "64")", "hidden_size", "\"64\""},
        Refused{"llama", R"("hidden_size": 64.0)", "hidden_size", "64.0"},
        Refused{"llama", R"("num_hidden_layers": 0)", "num_hidden_layers", "0"},
        Refused{"llama", R"("vocab_size": -1)", "vocab_size", "-1"},
        Refused{"llama", R"("vocab_size": 18446744073709551615)", "vocab_size", "184467440"},
        Refused{"llama", R"("vocab_size": null)", "vocab_size", "missing"},
        Refused{"llama", R"("vocab_size": 4611686018427387904)", "vocab_size", "16777216"},
        Refused{"llama", R"("num_key_value_heads": 3)", "num_key_value_heads", "3"},
        Refused{"llama", R"("num_attention_heads": 6)", "num_attention_heads", "6"},
        Refused{"llama", R"("head_dim": 15)", "head_dim", "15"},
        Refused{"llama", R"("rms_norm_eps": 0)", "rms_norm_eps", "0"},
        Refused{"llama", R"("initializer_range": -0.5)", "initializer_range", "-0.5"},
        Refused{"llama", R"("tie_word_embeddings": 1)", "tie_word_embeddings", "1"},
        Refused{"llama", R"("rope_theta": "big")", "rope_theta", "big"},
        Refused{"llama", R"("rope_scaling": "linear")", "rope_scaling", "linear"},
        Refused{"llama", R"("rope_scaling": {"type": "linear"})", "rope_scaling.factor", "missing"},
        Refused{"llama", R"("rope_scaling": {"type": "linear", "factor": 0.5})",
                "rope_scaling.factor", "0.5"},
        Refused{"llama", R"("rope_scaling": {"type": "llama3", "factor": 2.0})",
                "rope_scaling.low_freq_factor", "missing"},
        Refused{"llama", R"("rope_scaling": {"type": "linear", "factor": 2.0},
                            "rope_parameters": {"rope_type": "default"})",
                "rope_scaling", "rope_parameters"}));

TEST(LlamaConfig, MistralWithoutWindowFieldIsRefused) {
  EXPECT_TRUE(contains(thrown<UsageError>([] {
                         static_cast<void>(
                             load(concat(R"({"model_type": "mistral", )", kSizes, "}")));
                       }),
                       {"sliding_window", "missing", "4096", "null"}));
}

TEST(LlamaConfig, MissingFileIsAnIoError) {
  EXPECT_TRUE(
      contains(thrown<IoError>([] { static_cast<void>(load_config("/nowhere/config.json")); }),
               {"/nowhere/config.json"}));
}

TEST(LlamaConfig, BrokenJsonNamesTheFile) {
  EXPECT_TRUE(contains(thrown<UsageError>([] { static_cast<void>(load("{\"a\": ")); }),
                       {"config.json", "not JSON"}));
  EXPECT_TRUE(contains(thrown<UsageError>([] { static_cast<void>(load("[1]")); }),
                       {"config.json", "no JSON object"}));
}

TEST(LlamaConfig, FlopsAreSixPerProductWeightAndCausalAttention) {
  LlamaConfig config = named_config("tiny");
  const double products = 4 * (128 * 128 * 2 + 128 * 64 * 2 + 3 * 128 * 352) + 256 * 128;
  EXPECT_EQ(flops_per_token(config, 0), 6 * products);
  // Two products of 128 channels with half of 1000 positions, twice that backward.
  EXPECT_EQ(flops_per_token(config, 1000) - flops_per_token(config, 0), 4 * 3 * 4 * 128 * 500);
  config.tied = false;
  EXPECT_EQ(flops_per_token(config, 0), 6 * products);
}

}  // namespace
}  // namespace zero3::trainer
