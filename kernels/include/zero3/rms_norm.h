#pragma once

#include <zero3/gemm.h>
#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// RMSNorm (Zhang and Sennrich 2019) of `rows` rows of `width` elements: y = x · rstd · weight with
/// rstd = 1/sqrt(mean(x²) + eps), in fp32 inside. x and y share one dtype (fp32 or bf16); weight is
/// fp32 or bf16.
struct RmsNormShape {
  std::int64_t rows = 0, width = 0;
  float eps = 1e-5F;
  std::int64_t granule_rows = kDefaultGranuleRows;
};

/// `rstd` [rows] fp32 is kept for the backward. y may be x. Throws UsageError when sizes do not
/// fit.
void rms_norm_forward(TensorView y, TensorView rstd, TensorView x, TensorView weight,
                      const RmsNormShape& shape, Stream& stream);

/// dx = (or +=, by `into`) the gradient for the input; dweight [width] fp32 += the gradient for the
/// weight, one granule's sum at a time. dx and dy are fp32 or bf16 each; dx may be dy. An empty
/// `dweight` stands for a frozen weight and needs no workspace. `workspace`: kU8,
/// rms_norm_workspace_bytes(); more lets more threads work at once. Throws UsageError when sizes do
/// not fit.
void rms_norm_backward(TensorView dx, TensorView dweight, TensorView dy, TensorView x,
                       TensorView rstd, TensorView weight, const RmsNormShape& shape, Into into,
                       TensorView workspace, Stream& stream);

[[nodiscard]] Bytes rms_norm_workspace_bytes(const RmsNormShape& shape, int threads);

}  // namespace zero3
