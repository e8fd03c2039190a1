#include <cstring>
#include <string_view>

#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {
namespace {

/// Before anything is written, so that the row named is the first one whatever the threads do.
void check_tokens(std::string_view operation, const std::int32_t* tokens,
                  const EmbeddingShape& shape) {
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    ZERO3_CHECK(tokens[row] >= 0 && tokens[row] < shape.vocab, operation, ": row ", row,
                " has token ", tokens[row], ", the table has rows 0 to ", shape.vocab - 1,
                "; check the tokenizer against the model's vocabulary");
  }
}

/// Columns of d_table that one thread owns: whole cache lines, and few enough that narrow tables
/// are shared out too.
constexpr std::int64_t kColumns = 128;

}  // namespace

void embedding_forward(TensorView out, TensorView table, TensorView tokens,
                       const EmbeddingShape& shape, Stream& stream) {
  const auto* index = internal::native<std::int32_t>(tokens);
  visit<float, BFloat16>(table, [&]<class T>(T* from) {
    auto* to = internal::native<T>(out);
    enqueue(stream, "embedding_forward", {out}, {table, tokens}, [=] {
      check_tokens("embedding_forward", index, shape);
      const auto row_bytes = static_cast<std::size_t>(shape.width) * sizeof(T);
      parallel_for(
          shape.rows, rows_per_grain(shape.width), [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row) {
              std::memcpy(to + row * shape.width, from + index[row] * shape.width, row_bytes);
            }
          });
    });
  });
}

void embedding_backward(TensorView d_table, TensorView d_out, TensorView tokens,
                        const EmbeddingShape& shape, Stream& stream) {
  const auto* index = internal::native<std::int32_t>(tokens);
  auto* to = internal::native<float>(d_table);
  visit<float, BFloat16>(d_out, [&](const auto* from) {
    enqueue(stream, "embedding_backward", {}, {}, [=] {
      check_tokens("embedding_backward", index, shape);
      parallel_for(shape.width, kColumns, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = 0; row < shape.rows; ++row) {
          auto* sum = to + index[row] * shape.width;
          const auto* term = from + row * shape.width;
#pragma omp simd
          for (std::int64_t i = begin; i < end; ++i) sum[i] += static_cast<float>(term[i]);
        }
      });
    });
  });
}

}  // namespace zero3::cpu
