#include "cpu/attention_block.h"

#include <utility>

#include <zero3/half.h>
#include <zero3/internal/cpu_stream.h>

namespace zero3::cpu {
namespace {

void multiply(float* values, std::int64_t count, float factor) {
  if (factor == 1.0F) return;
  for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

template <class T>
void store(T* to, std::int64_t stride, std::int64_t count, std::int64_t head_dim,
           const float* panel, const float* factors) {
  for (std::int64_t j = 0; j < count; ++j) {
    for (std::int64_t c = 0; c < head_dim; ++c)
      to[j * stride + c] = static_cast<T>(panel[c * kPanel + j] * factors[j]);
  }
}

}  // namespace

HeadTokens TokenTensor::head(std::int64_t batch, std::int64_t head_index) const {
  const std::int64_t stride = heads * head_dim;
  return {data + (batch * seq * stride + head_index * head_dim) * size_of(dtype), dtype, stride};
}

TokenTensor token_tensor(const TensorView& view, std::int64_t seq, std::int64_t heads,
                         std::int64_t head_dim) {
  return {static_cast<std::byte*>(internal::native_data(view)), view.dtype(), seq, heads, head_dim};
}

void pack_tokens(float* panels, const HeadTokens& tokens, std::int64_t first, std::int64_t count,
                 std::int64_t head_dim, float scale) {
  pack_panels(panels, tokens.operand(Order::kColumns), 0, first, head_dim, count);
  multiply(panels, round_up(count, kPanel) * head_dim, scale);
}

void load_tokens(float* rows, const HeadTokens& tokens, std::int64_t first, std::int64_t count,
                 std::int64_t head_dim, float scale) {
  load_block(rows, tokens.operand(), first, 0, count, head_dim);
  multiply(rows, count * head_dim, scale);
}

void store_tokens(const HeadTokens& tokens, std::int64_t first, std::int64_t count,
                  std::int64_t head_dim, const float* panel, const float* factors) {
  const std::int64_t offset = first * tokens.stride;
  if (tokens.dtype == DType::kF32) {
    store(reinterpret_cast<float*>(tokens.data) + offset, tokens.stride, count, head_dim, panel,
          factors);
  } else {
    store(reinterpret_cast<BFloat16*>(tokens.data) + offset, tokens.stride, count, head_dim, panel,
          factors);
  }
}

AttentionScratch attention_scratch(float* memory, int thread, std::int64_t head_dim) {
  float* next = memory + thread * attention_scratch_floats(head_dim);
  const auto take = [&](std::int64_t floats) { return std::exchange(next, next + floats); };
  AttentionScratch scratch{};
  for (float*& part : scratch.scores) part = take(kAttentionRows * kPanel);
  for (float*& part : scratch.panels) part = take(kAttentionLanes * head_dim);
  for (float*& part : scratch.rows) part = take(kAttentionRows * head_dim);
  for (float*& part : scratch.stats) part = take(kAttentionLanes);
  return scratch;
}

}  // namespace zero3::cpu
