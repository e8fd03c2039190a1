#pragma once

#include <cstdint>

#include <zero3/stream.h>
#include <zero3/tensor_view.h>
#include <zero3/units.h>

namespace zero3 {

/// Causal self-attention with grouped key/value heads: query head h reads key/value head h / (heads
/// / kv_heads). Token tensors are row-major, [batch · seq, heads · head_dim] for q and out, [batch
/// · seq, kv_heads · head_dim] for k and v; row b · seq + t is token t of sequence b.
struct AttentionShape {
  std::int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  /// Factor of the scores; 0 stands for 1/sqrt(head_dim).
  float scale = 0;
};

/// out = softmax(scale · q · k^T, causal) · v, tiled with the online softmax (Milakov and
/// Gimelshein 2018; Dao et al. 2022, algorithm 1): no memory of size seq × seq. `lse` [batch,
/// heads, seq] fp32 receives the log of each row's sum of exponentials, which the backward needs.
/// q, k, v, out share one dtype, fp32 or bf16; scores and sums are fp32. `workspace`: kU8,
/// attention_workspace_bytes(). Throws UsageError when sizes do not fit. Same bits for any number
/// of threads. Empty shapes are fine.
void attention_forward(TensorView out, TensorView lse, TensorView q, TensorView k, TensorView v,
                       const AttentionShape& shape, TensorView workspace, Stream& stream);

/// Gradients of the above for d_out, by recomputing the scores tile by tile (Dao et al. 2022,
/// algorithm 4). dq, dk, dv are replaced, and share no memory with an input.
void attention_backward(TensorView dq, TensorView dk, TensorView dv, TensorView d_out,
                        TensorView out, TensorView lse, TensorView q, TensorView k, TensorView v,
                        const AttentionShape& shape, TensorView workspace, Stream& stream);

/// Scratch of both, in bytes, on a stream with that many threads.
[[nodiscard]] Bytes attention_workspace_bytes(const AttentionShape& shape, DType dtype,
                                              int threads);

}  // namespace zero3
