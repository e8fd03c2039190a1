#pragma once

#include <zero3/attention.h>

namespace zero3::cpu {

/// The operations of <zero3/attention.h> on streams of CPU devices. Arguments have been checked;
/// shape.scale is set.
///
/// Lanes of a vector are tokens: a block of kAttentionLanes queries (or keys) stays in cache as
/// panels [head_dim, kPanel], and tiles of kAttentionRows tokens of the other side pass by. Scores
/// come out as [rows, kPanel], already in the form that the next product reads, and the softmax
/// needs no sums across lanes. Each thread's scratch is O(tile · (tile + head_dim)).
void attention_forward(TensorView out, TensorView lse, TensorView q, TensorView k, TensorView v,
                       const AttentionShape& shape, TensorView workspace, Stream& stream);

/// Two independent sets of tasks, so that every gradient element is summed by one task in one
/// order, and nothing wider than a tile is kept in fp32: blocks of keys give dk and dv, blocks of
/// queries dq. The price is that scores are recomputed twice: 7 products in place of 5.
void attention_backward(TensorView dq, TensorView dk, TensorView dv, TensorView d_out,
                        TensorView out, TensorView lse, TensorView q, TensorView k, TensorView v,
                        const AttentionShape& shape, TensorView workspace, Stream& stream);

[[nodiscard]] Bytes attention_workspace_bytes(const AttentionShape& shape, int threads);

}  // namespace zero3::cpu
