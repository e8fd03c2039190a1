// Reads Hugging Face's config.json into a LlamaConfig.
#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <zero3/error.h>
#include <zero3/trainer/llama_config.h>

namespace zero3::trainer {
namespace {

using nlohmann::json;

/// The fields of a JSON object. A null field is an absent one, as in Hugging Face's own reader.
class Fields {
 public:
  /// `prefix` stands before every field's name in messages.
  explicit Fields(const json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  [[nodiscard]] bool has(std::string_view name) const {
    const auto it = object_.find(name);
    return it != object_.end() && !it->is_null();
  }
  [[nodiscard]] const json& get(std::string_view name) const {
    ZERO3_CHECK(has(name), "field '", prefix_, name, "' is missing");
    return *object_.find(name);
  }
  [[noreturn]] void refuse(std::string_view name, std::string_view why) const {
    throw UsageError(fmt::format("field '{}{}' is {}; {}", prefix_, name, get(name).dump(), why));
  }

  [[nodiscard]] std::int64_t integer(std::string_view name) const {
    const json& value = get(name);
    const bool too_large = value.is_number_unsigned() &&
                           value.get<std::uint64_t>() >
                               static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!value.is_number_integer() || too_large) refuse(name, "it must be a positive integer");
    if (value.get<std::int64_t>() < 1) refuse(name, "it must be a positive integer");
    return value.get<std::int64_t>();
  }
  [[nodiscard]] std::int64_t integer_or(std::string_view name, std::int64_t absent) const {
    return has(name) ? integer(name) : absent;
  }
  [[nodiscard]] double number(std::string_view name) const {
    if (!get(name).is_number()) refuse(name, "it must be a number");
    return get(name).get<double>();
  }
  [[nodiscard]] double number_or(std::string_view name, double absent) const {
    return has(name) ? number(name) : absent;
  }
  [[nodiscard]] double positive_or(std::string_view name, double absent) const {
    const double value = number_or(name, absent);
    if (value <= 0) refuse(name, "it must be positive");
    return value;
  }
  [[nodiscard]] bool boolean_or(std::string_view name, bool absent) const {
    if (!has(name)) return absent;
    if (!get(name).is_boolean()) refuse(name, "it must be true or false");
    return get(name).get<bool>();
  }
  [[nodiscard]] std::string text(std::string_view name) const {
    if (!get(name).is_string()) refuse(name, "it must be a string");
    return get(name).get<std::string>();
  }
  /// Refuses the field unless it is absent, false, or the number that changes nothing.
  void refuse_unless(std::string_view name, double neutral, std::string_view why) const {
    if (!has(name)) return;
    const json& value = get(name);
    if (value.is_boolean() && !value.get<bool>()) return;
    if (value.is_number() && value.get<double>() == neutral) return;
    refuse(name, why);
  }
  [[nodiscard]] const json& object() const { return object_; }

 private:
  const json& object_;
  std::string prefix_;
};

struct Family {
  std::string_view model_type, architecture;
  std::int64_t max_position_embeddings;
};
constexpr std::array<Family, 4> kFamilies = {{
    {"llama", "LlamaForCausalLM", 2048},
    {"mistral", "MistralForCausalLM", 131072},
    {"qwen2", "Qwen2ForCausalLM", 32768},
    {"qwen3", "Qwen3ForCausalLM", 32768},
}};

const Family& family_of(const Fields& fields) {
  const std::string type = fields.text("model_type");
  for (const Family& family : kFamilies) {
    if (family.model_type != type) continue;
    if (!fields.has("architectures")) return family;
    const json& names = fields.get("architectures");
    if (names == json::array({family.architecture})) return family;
    fields.refuse("architectures", fmt::format("only [\"{}\"] can be trained for model_type {}",
                                               family.architecture, type));
  }
  fields.refuse("model_type", "the types that can be trained are llama, mistral, qwen2, qwen3");
}

/// Fields that change the mathematics of some model of these types, or of one derived from them,
/// with the value that changes nothing.
struct Foreign {
  std::string_view name;
  double neutral;
};
constexpr std::array<Foreign, 30> kForeign = {{
    {"attention_dropout", 0},
    {"mlp_bias", 0},
    {"pretraining_tp", 1},
    {"quantization_config", 0},
    {"partial_rotary_factor", 1},
    {"num_local_experts", 0},
    {"num_experts", 0},
    {"n_routed_experts", 0},
    {"n_shared_experts", 0},
    {"num_experts_per_tok", 0},
    {"moe_intermediate_size", 0},
    {"num_nextn_predict_layers", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"query_pre_attn_scalar", 0},
    {"logit_scale", 1},
    {"logits_scaling", 1},
    {"embedding_multiplier", 1},
    {"residual_multiplier", 1},
    {"attention_multiplier", 1},
    {"clip_qkv", 0},
    {"no_rope_layers", 0},
    {"no_rope_layer_interval", 0},
    {"attn_temperature_tuning", 0},
    {"use_qk_norm", 0},
    {"use_mrope", 0},
    {"embd_pdrop", 0},
    {"resid_pdrop", 0},
    {"hidden_dropout", 0},
    {"per_layer_config", 0},
}};

void refuse_foreign(const Fields& fields) {
  for (const Foreign& foreign : kForeign) {
    fields.refuse_unless(foreign.name, foreign.neutral, "this is not implemented");
  }
  if (fields.has("hidden_act") && fields.text("hidden_act") != "silu") {
    fields.refuse("hidden_act", "only \"silu\" is implemented");
  }
}

void refuse_windows(const Fields& fields, std::string_view type) {
  constexpr std::string_view kWhy =
      "sliding windows are not implemented: attention sees the whole sequence";
  if (type == "qwen2" || type == "qwen3") {
    fields.refuse_unless("use_sliding_window", 0, kWhy);
  } else if (fields.has("sliding_window")) {
    fields.refuse("sliding_window",
                  fmt::format("{}. Equal for sequences that fit in the window: write null", kWhy));
  }
  // Transformers' MistralConfig has a window of 4096 where the field is left out.
  ZERO3_CHECK(type != "mistral" || fields.object().contains("sliding_window"),
              "field 'sliding_window' is missing, which stands for 4096 in a mistral model; ", kWhy,
              ". Write null");
  if (!fields.has("layer_types")) return;
  const json& types = fields.get("layer_types");
  const bool full = types.is_array() && std::all_of(types.begin(), types.end(), [](const json& t) {
                      return t == "full_attention";
                    });
  if (!full) fields.refuse("layer_types", "only \"full_attention\" is implemented");
}

/// Hugging Face's rule for yarn's factor of the tables, from whichever of its three fields are
/// given.
double yarn_attention_factor(const Fields& rope, double factor) {
  if (rope.has("attention_factor")) return rope.positive_or("attention_factor", 1);
  const double m = rope.number_or("mscale", 0), all = rope.number_or("mscale_all_dim", 0);
  if (m == 0 || all == 0) return 0;
  const auto scale = [&](double by) { return factor <= 1 ? 1.0 : 0.1 * by * std::log(factor) + 1; };
  return scale(m) / scale(all);
}

void read_scaling(RopeConfig& config, const Fields& rope, std::int64_t original_max_position) {
  using Scaling = RopeConfig::Scaling;
  // Older files say "type", newer ones "rope_type".
  const std::string_view key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.has(key) ? rope.text(key) : "default";
  std::vector<std::string_view> known = {"rope_type", "type", "rope_theta"};
  if (type == "default") {
    config.scaling = Scaling::kNone;
  } else if (type == "linear") {
    config.scaling = Scaling::kLinear;
    known.insert(known.end(), {"factor"});
  } else if (type == "llama3") {
    config.scaling = Scaling::kLlama3;
    known.insert(known.end(), {"factor", "low_freq_factor", "high_freq_factor",
                               "original_max_position_embeddings"});
  } else if (type == "yarn") {
    config.scaling = Scaling::kYarn;
    known.insert(known.end(), {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale",
                               "mscale_all_dim", "truncate", "original_max_position_embeddings"});
  } else {
    rope.refuse(key, "the types that are implemented are default, linear, llama3, yarn");
  }
  for (const auto& [name, value] : rope.object().items()) {
    const bool is_known = std::find(known.begin(), known.end(), name) != known.end();
    if (!is_known && name == "partial_rotary_factor") {
      rope.refuse_unless(name, 1, "this is not implemented");
    } else if (!is_known && !value.is_null()) {
      rope.refuse(name, fmt::format("this field is not known for rope type {}", type));
    }
  }
  if (config.scaling == Scaling::kNone) return;
  config.factor = rope.number("factor");
  if (config.factor < 1) rope.refuse("factor", "it must be at least 1");
  config.original_max_position = original_max_position;
  if (config.scaling == Scaling::kLlama3) {
    config.low_freq_factor = rope.number("low_freq_factor");
    config.high_freq_factor = rope.number("high_freq_factor");
  } else if (config.scaling == Scaling::kYarn) {
    config.beta_fast = rope.positive_or("beta_fast", 32);
    config.beta_slow = rope.positive_or("beta_slow", 1);
    config.attention_factor = yarn_attention_factor(rope, config.factor);
    if (!rope.boolean_or("truncate", true)) rope.refuse("truncate", "only true is implemented");
  }
}

RopeConfig read_rope(const Fields& fields, std::int64_t head_dim, std::int64_t max_position) {
  RopeConfig config;
  config.head_dim = head_dim;
  config.theta = fields.positive_or("rope_theta", 10000.0);
  const bool old_spelling = fields.has("rope_scaling"),
             new_spelling = fields.has("rope_parameters");
  ZERO3_CHECK(
      !old_spelling || !new_spelling,
      "fields 'rope_scaling' and 'rope_parameters' are two spellings of one thing; keep one");
  if (!old_spelling && !new_spelling) return config;
  const std::string name = old_spelling ? "rope_scaling" : "rope_parameters";
  const json& object = fields.get(name);
  if (!object.is_object()) fields.refuse(name, "it must be an object");
  const Fields rope(object, name + ".");
  config.theta = rope.positive_or("rope_theta", config.theta);
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  read_scaling(
      config, rope,
      fields.has(kOriginal) ? fields.integer(kOriginal) : rope.integer_or(kOriginal, max_position));
  return config;
}

void read_heads(LlamaConfig& config, const Fields& fields) {
  config.heads = fields.integer("num_attention_heads");
  // Only a llama's keys and values have as many heads as its queries where the field is left out.
  const bool derived =
      config.model_type == "llama" || fields.object().contains("num_key_value_heads");
  config.kv_heads = derived ? fields.integer_or("num_key_value_heads", config.heads)
                            : fields.integer("num_key_value_heads");
  if (fields.has("head_dim")) {
    config.head_dim = fields.integer("head_dim");
  } else if (config.model_type == "qwen3") {
    config.head_dim = 128;
  } else {
    ZERO3_CHECK(config.hidden % config.heads == 0, "hidden_size ", config.hidden,
                " is not a multiple of num_attention_heads ", config.heads, "; give head_dim");
    config.head_dim = config.hidden / config.heads;
  }
}

void read_biases(LlamaConfig& config, const Fields& fields) {
  const std::string_view type = config.model_type;
  if (type == "llama" || type == "qwen3") {
    config.qkv_bias = config.output_bias = fields.boolean_or("attention_bias", false);
  } else if (type == "mistral") {
    fields.refuse_unless("attention_bias", 0, "a mistral model has no biases");
  } else if (!fields.boolean_or("attention_bias", true)) {
    fields.refuse("attention_bias", "a qwen2 model has biases of q, k and v; remove the field");
  } else {
    config.qkv_bias = true;
  }
  config.qk_norm = type == "qwen3";
}

LlamaConfig read_config(const Fields& fields) {
  const Family& family = family_of(fields);
  refuse_foreign(fields);
  refuse_windows(fields, family.model_type);
  LlamaConfig config;
  config.model_type = family.model_type;
  config.hidden = fields.integer("hidden_size");
  config.intermediate = fields.integer("intermediate_size");
  config.layers = fields.integer("num_hidden_layers");
  config.vocab = fields.integer("vocab_size");
  config.max_position_embeddings =
      fields.integer_or("max_position_embeddings", family.max_position_embeddings);
  config.tied = fields.boolean_or("tie_word_embeddings", false);
  config.rms_norm_eps = static_cast<float>(fields.positive_or("rms_norm_eps", 1e-6));
  config.initializer_range = static_cast<float>(fields.number_or("initializer_range", 0.02));
  read_heads(config, fields);
  read_biases(config, fields);
  config.rope = read_rope(fields, config.head_dim, config.max_position_embeddings);
  validate(config);
  return config;
}

json parse(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in)
    throw IoError(fmt::format("cannot read {}; give a directory with config.json, or such a file",
                              file.string()));
  try {
    return json::parse(in);
  } catch (const json::exception& error) {
    throw UsageError(fmt::format("{} is not JSON: {}", file.string(), error.what()));
  }
}

}  // namespace

LlamaConfig load_config(const std::filesystem::path& directory_or_file) {
  const std::filesystem::path file = std::filesystem::is_directory(directory_or_file)
                                         ? directory_or_file / "config.json"
                                         : directory_or_file;
  const json object = parse(file);
  ZERO3_CHECK(object.is_object(), file.string(), " holds no JSON object");
  try {
    return read_config(Fields(object));
  } catch (const UsageError& error) {
    throw UsageError(concat(file.string(), ": ", error.what()));
  }
}

void refuse_weights(const std::filesystem::path& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    ZERO3_CHECK(
        entry.path().extension() != ".safetensors", "the weights of ", directory.string(), " (",
        entry.path().filename().string(),
        ") cannot be loaded yet; remove *.safetensors, or give a directory with config.json alone");
  }
}

}  // namespace zero3::trainer
