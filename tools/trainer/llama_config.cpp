#include <zero3/trainer/llama_config.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <zero3/error.h>
#include <zero3/trainer/nearest.h>

namespace zero3::trainer {
namespace {

struct NamedShape {
  std::string_view name;
  std::int64_t hidden, intermediate, layers, heads, kv_heads, vocab;
};
constexpr std::array<NamedShape, 4> kShapes = {{
    {"tiny", 128, 352, 4, 4, 2, 256},
    {"30m", 384, 1024, 6, 6, 6, 50304},
    {"100m", 768, 2048, 12, 12, 4, 32000},
    {"135m", 576, 1536, 30, 9, 3, 49152},
}};

/// Bounds under which no count of parameters or of bytes overflows.
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;
constexpr std::int64_t kMaxLayers = std::int64_t{1} << 14;

std::string unknown_name(std::string_view name) {
  return fmt::format("no model is named '{}'; the names are {} (nearest: {})", name,
                     fmt::join(named_configs(), ", "), nearest(name, named_configs()));
}

void check_extent(std::string_view field, std::int64_t value, std::int64_t largest) {
  ZERO3_CHECK(value >= 1 && value <= largest, field, " is ", value, "; it must be 1 to ", largest);
}

/// Weights of one block's matrices.
std::int64_t block_matrices(const LlamaConfig& c) {
  return c.hidden * (2 * c.query_width() + 2 * c.kv_width()) + 3 * c.hidden * c.intermediate;
}

}  // namespace

const std::vector<std::string>& named_configs() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    all.reserve(kShapes.size());
    for (const NamedShape& shape : kShapes) all.emplace_back(shape.name);
    return all;
  }();
  return names;
}

LlamaConfig named_config(std::string_view name) {
  for (const NamedShape& shape : kShapes) {
    if (shape.name != name) continue;
    LlamaConfig config;
    config.hidden = shape.hidden;
    config.intermediate = shape.intermediate;
    config.layers = shape.layers;
    config.heads = shape.heads;
    config.kv_heads = shape.kv_heads;
    config.head_dim = shape.hidden / shape.heads;
    config.vocab = shape.vocab;
    config.tied = true;
    config.rope.head_dim = config.head_dim;
    validate(config);
    return config;
  }
  throw UsageError(unknown_name(name));
}

LlamaConfig resolve_config(std::string_view name_or_path) {
  const std::vector<std::string>& names = named_configs();
  if (std::find(names.begin(), names.end(), name_or_path) != names.end()) {
    return named_config(name_or_path);
  }
  const std::filesystem::path path(name_or_path);
  ZERO3_CHECK(std::filesystem::exists(path), unknown_name(name_or_path),
              ", and there is no directory or file of that name either");
  if (std::filesystem::is_directory(path)) refuse_weights(path);
  return load_config(path);
}

void validate(const LlamaConfig& c) {
  check_extent("hidden_size", c.hidden, kMaxWidth);
  check_extent("intermediate_size", c.intermediate, kMaxWidth);
  check_extent("num_hidden_layers", c.layers, kMaxLayers);
  check_extent("num_attention_heads", c.heads, kMaxWidth);
  check_extent("num_key_value_heads", c.kv_heads, c.heads);
  check_extent("head_dim", c.head_dim, kMaxWidth / c.heads);
  check_extent("vocab_size", c.vocab, kMaxVocab);
  check_extent("max_position_embeddings", c.max_position_embeddings, INT32_MAX);
  ZERO3_CHECK(c.heads % c.kv_heads == 0, "num_attention_heads ", c.heads,
              " is not a multiple of num_key_value_heads ", c.kv_heads);
  ZERO3_CHECK(c.head_dim % 2 == 0, "head_dim ", c.head_dim,
              " is odd; rotary position embeddings need an even one");
  ZERO3_CHECK(c.rope.head_dim == c.head_dim, "the rotary embedding's head_dim ", c.rope.head_dim,
              " is not the model's ", c.head_dim);
  ZERO3_CHECK(c.rms_norm_eps > 0, "rms_norm_eps is ", c.rms_norm_eps, "; it must be positive");
  ZERO3_CHECK(c.initializer_range >= 0, "initializer_range is ", c.initializer_range,
              "; it must not be negative");
}

std::int64_t parameter_count(const LlamaConfig& c) {
  std::int64_t block = block_matrices(c) + 2 * c.hidden;
  if (c.qkv_bias) block += c.query_width() + 2 * c.kv_width();
  if (c.output_bias) block += c.hidden;
  if (c.qk_norm) block += 2 * c.head_dim;
  return c.layers * block + c.hidden + (c.tied ? 1 : 2) * c.vocab * c.hidden;
}

double flops_per_token(const LlamaConfig& c, std::int64_t seq) {
  const auto products = static_cast<double>(c.layers * block_matrices(c) + c.vocab * c.hidden);
  // Scores and their product with the values: 2 · 2 · seq/2 · width forward, twice that backward.
  const auto attention = static_cast<double>(c.layers * c.query_width() * seq);
  return 6.0 * products + 6.0 * attention;
}

}  // namespace zero3::trainer
