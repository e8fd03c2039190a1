#pragma once

#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

struct EmbeddingShape {
  std::int64_t rows = 0, width = 0, vocab = 0;
};

/// out[r] = table[tokens[r]]: out [rows, width] and table [vocab, width] share a dtype, fp32 or
/// bf16; tokens are int32. A token outside [0, vocab) makes the stream fail with UsageError that
/// names the first such row and its token. Throws UsageError when sizes do not fit.
void embedding_forward(TensorView out, TensorView table, TensorView tokens,
                       const EmbeddingShape& shape, Stream& stream);

/// d_table[tokens[r]] += d_out[r] in ascending order of r; d_table is fp32, d_out fp32 or bf16.
/// Tokens as above.
void embedding_backward(TensorView d_table, TensorView d_out, TensorView tokens,
                        const EmbeddingShape& shape, Stream& stream);

}  // namespace zero3
