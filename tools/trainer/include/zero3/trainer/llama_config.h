#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <zero3/rope.h>

namespace zero3::trainer {

/// A decoder of the Llama family. The meaning of every field is that of Hugging Face's config.json.
struct LlamaConfig {
  /// "llama", "mistral", "qwen2", "qwen3".
  std::string model_type = "llama";
  std::int64_t hidden = 0, intermediate = 0, layers = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t vocab = 0;
  /// The head's matrix is the embedding table.
  bool tied = false;
  float rms_norm_eps = 1e-6F;
  /// Its head_dim is that of above.
  RopeConfig rope = {};
  /// Biases of the q, k and v projections, and of the output projection.
  bool qkv_bias = false, output_bias = false;
  /// RMSNorm over each head of q and k, before the rotation.
  bool qk_norm = false;
  float initializer_range = 0.02F;
  /// Longest sequence that the model was made for; longer ones are possible.
  std::int64_t max_position_embeddings = 2048;

  /// Width of the queries, and of the keys or values, of a token.
  [[nodiscard]] std::int64_t query_width() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t kv_width() const { return kv_heads * head_dim; }
};

/// Names that named_config() knows, smallest first.
[[nodiscard]] const std::vector<std::string>& named_configs();
/// A shape for a fresh model. Throws UsageError that lists the names and says which is nearest.
[[nodiscard]] LlamaConfig named_config(std::string_view name);

/// Reads a Hugging Face config.json, or that of a directory. Fields that change the mathematics and
/// that are not implemented are refused. Throws UsageError naming field, value and file; IoError if
/// the file cannot be read.
[[nodiscard]] LlamaConfig load_config(const std::filesystem::path& directory_or_file);
/// Throws UsageError if the directory holds *.safetensors: a model would start from fresh weights
/// instead.
void refuse_weights(const std::filesystem::path& directory);
/// What `--model` accepts: a name of named_configs(), or a directory (with config.json and without
/// weights) or file.
[[nodiscard]] LlamaConfig resolve_config(std::string_view name_or_path);

/// Throws UsageError naming the field unless the sizes fit together.
void validate(const LlamaConfig& config);

/// Parameters in all; a tied table counts once.
[[nodiscard]] std::int64_t parameter_count(const LlamaConfig& config);
/// Floating-point operations of forward and backward for one token of a sequence of `seq`: 6 for
/// each weight of a matrix product, and causal attention. Without recomputation.
[[nodiscard]] double flops_per_token(const LlamaConfig& config, std::int64_t seq);

}  // namespace zero3::trainer
