#pragma once

#include <cstdint>

#include <zero3/philox.h>
#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// What the draws of a dropout depend on besides token and channel: nothing of how rows are cut
/// into tiles or dealt out to ranks, nor of how often they are drawn.
struct DropoutDraw {
  /// Of the run: philox_key(seed, …).
  PhiloxKey key = {};
  std::int64_t step = 0;
  /// Layer and operation: which of the dropouts of a step.
  std::uint32_t site = 0;
  /// Number of the first row's token among those of the step.
  std::int64_t first_token = 0;
};

/// target[r, c] = source[r, c] / (1 - probability), or 0 where the draw is below probability ·
/// 2^32. The draw is word c % 4 of philox({token mod 2^32, token / 2^32, c / 4, site}, step's key),
/// with token = first_token + r; the step's key is the first half of philox({step mod 2^32, step /
/// 2^32, 0, 0}, key). Both views fp32 or bf16 alike, rows of `width` elements; target may be
/// source. The backward is the same call on the gradient. Throws UsageError for a probability
/// outside [0, 1).
void dropout(TensorView target, TensorView source, std::int64_t width, float probability,
             const DropoutDraw& draw, Stream& stream);

}  // namespace zero3
