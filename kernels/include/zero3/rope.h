#pragma once

#include <cstdint>
#include <vector>

#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// Rotary position embedding (Su et al. 2021) in Hugging Face's convention: channel i is paired
/// with i + head_dim/2 ("rotate_half"), the frequency of pair i is theta^(-2i/head_dim), changed by
/// the scaling type.
struct RopeConfig {
  enum class Scaling : std::uint8_t { kNone, kLinear, kLlama3, kYarn };
  std::int64_t head_dim = 0;
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  /// Positions that the model was pretrained on, for llama3 and yarn.
  std::int64_t original_max_position = 0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< llama3
  double beta_fast = 32.0, beta_slow = 1.0;              ///< yarn
  double attention_factor = 0.0;                         ///< yarn; 0: 0.1 ln(factor) + 1
};

/// cos and sin of every position's angles, each [seq, head_dim/2], row-major.
struct RopeTable {
  std::vector<float> cos, sin;
};

/// Computed on the host in double and rounded once; yarn's attention factor is included. Throws
/// UsageError for an odd head_dim or impossible factors.
[[nodiscard]] RopeTable make_rope_table(const RopeConfig& config, std::int64_t seq);

struct RopeShape {
  std::int64_t rows = 0, seq = 0, heads = 0, head_dim = 0;
};
enum class RopeDirection : std::uint8_t { kForward, kBackward };

/// Rotates x [rows, heads · head_dim] (fp32 or bf16) in place; row r has position r mod seq. `cos`
/// and `sin` are fp32 views [seq, head_dim/2] on the device. The backward is the transposed
/// rotation. Throws UsageError when sizes do not fit.
void rope(TensorView x, TensorView cos, TensorView sin, const RopeShape& shape,
          RopeDirection direction, Stream& stream);

}  // namespace zero3
