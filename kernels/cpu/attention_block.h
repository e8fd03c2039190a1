#pragma once

#include <cstdint>

#include <zero3/attention.h>

#include "cpu/pack.h"

namespace zero3::cpu {

/// Tokens whose panels a task keeps, and tokens that it reads at a time. 192 is 8 panels of AVX2, 4
/// of AVX-512.
inline constexpr std::int64_t kAttentionLanes = 192;
inline constexpr std::int64_t kAttentionRows = 128;
static_assert(kAttentionLanes % kPanel == 0);

/// The tokens of one sequence in one head of a token tensor: element (t, c) is data[t · stride +
/// c].
struct HeadTokens {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t stride = 0;

  [[nodiscard]] Operand operand(Order order = Order::kRows) const {
    return {.data = data, .dtype = dtype, .stride = stride, .order = order};
  }
};

/// A token tensor [batch · seq, heads · head_dim].
struct TokenTensor {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t seq = 0, heads = 0, head_dim = 0;

  [[nodiscard]] HeadTokens head(std::int64_t batch, std::int64_t head) const;
};
[[nodiscard]] TokenTensor token_tensor(const TensorView& view, std::int64_t seq, std::int64_t heads,
                                       std::int64_t head_dim);

/// Tokens [first, first + count) times `scale`, as panels [head_dim, kPanel] with tokens as lanes;
/// the lanes after the last token are 0.
void pack_tokens(float* panels, const HeadTokens& tokens, std::int64_t first, std::int64_t count,
                 std::int64_t head_dim, float scale);
/// The same tokens as rows [count, head_dim].
void load_tokens(float* rows, const HeadTokens& tokens, std::int64_t first, std::int64_t count,
                 std::int64_t head_dim, float scale);
/// Stores lane j of the panel [head_dim, kPanel], times factors[j], as token first + j, rounded
/// once.
void store_tokens(const HeadTokens& tokens, std::int64_t first, std::int64_t count,
                  std::int64_t head_dim, const float* panel, const float* factors);

/// One thread's scratch. Each member has kAttentionRows · kPanel, kAttentionLanes · head_dim,
/// kAttentionRows · head_dim or kAttentionLanes floats.
struct AttentionScratch {
  float* scores[2];
  float* panels[4];
  float* rows[2];
  float* stats[2];
};
/// The scratch of thread `thread` in memory of attention_scratch_floats(head_dim) for each.
[[nodiscard]] AttentionScratch attention_scratch(float* memory, int thread, std::int64_t head_dim);
[[nodiscard]] constexpr std::int64_t attention_scratch_floats(std::int64_t head_dim) {
  return 2 * kAttentionRows * kPanel + (4 * kAttentionLanes + 2 * kAttentionRows) * head_dim +
         2 * kAttentionLanes;
}

/// Floats at the start of the workspace, one for each query of each head, rounded up to a cache
/// line.
[[nodiscard]] constexpr std::int64_t attention_row_floats(const AttentionShape& shape) {
  return round_up(shape.batch * shape.heads * shape.seq, kAlignment / 4);
}
/// Where the threads' scratch begins. Throws UsageError unless it is enough for the running task's
/// threads.
[[nodiscard]] float* attention_threads_memory(const AttentionShape& shape, std::byte* workspace,
                                              Bytes bytes);

}  // namespace zero3::cpu
