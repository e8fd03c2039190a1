#pragma once

#include <zero3/adamw.h>
#include <zero3/cast.h>
#include <zero3/cross_entropy.h>
#include <zero3/dropout.h>
#include <zero3/elementwise.h>
#include <zero3/embedding.h>
#include <zero3/reduce.h>
#include <zero3/rms_norm.h>
#include <zero3/rope.h>
#include <zero3/sgd.h>
#include <zero3/swiglu.h>

/// The operations of the public headers on streams of CPU devices. Arguments have been checked.
namespace zero3::cpu {

void adamw_step(TensorView weights, TensorView m, TensorView v, TensorView grads,
                const AdamWStep& step, Stream& stream);
void sgd_step(TensorView weights, TensorView grads, const SgdStep& step, Stream& stream);

void cast(TensorView target, TensorView source, Stream& stream);
void round_to(TensorView values, DType dtype, Stream& stream);
void add(TensorView out, TensorView a, TensorView b, Stream& stream);
void scale(TensorView out, TensorView x, float factor, Stream& stream);
void dropout(TensorView target, TensorView source, std::int64_t width, float probability,
             const DropoutDraw& draw, Stream& stream);

void fold(TensorView accumulator, TensorView source, DType wire, Into into, Stream& stream);
void sum_in_order(TensorView out, TensorView values, Stream& stream);
void block_square_sums(TensorView sums, TensorView values, Stream& stream);
void first_nonfinite(TensorView out, TensorView values, Stream& stream);
void checksum(TensorView out, TensorView values, std::int64_t first_index, Stream& stream);

void embedding_forward(TensorView out, TensorView table, TensorView tokens,
                       const EmbeddingShape& shape, Stream& stream);
void embedding_backward(TensorView d_table, TensorView d_out, TensorView tokens,
                        const EmbeddingShape& shape, Stream& stream);

void rms_norm_forward(TensorView y, TensorView rstd, TensorView x, TensorView weight,
                      const RmsNormShape& shape, Stream& stream);
void rms_norm_backward(TensorView dx, TensorView dweight, TensorView dy, TensorView x,
                       TensorView rstd, TensorView weight, const RmsNormShape& shape, Into into,
                       TensorView workspace, Stream& stream);
[[nodiscard]] Bytes rms_norm_workspace_bytes(const RmsNormShape& shape, int threads);

void rope(TensorView x, TensorView cos, TensorView sin, const RopeShape& shape,
          RopeDirection direction, Stream& stream);
void swiglu_forward(TensorView out, TensorView gate, TensorView up, Stream& stream);
void swiglu_backward(TensorView d_gate, TensorView d_up, TensorView product, TensorView d_out,
                     TensorView gate, TensorView up, Stream& stream);
void cross_entropy(TensorView row_loss, TensorView d_logits, TensorView logits, TensorView targets,
                   const CrossEntropyShape& shape, Stream& stream);

}  // namespace zero3::cpu
