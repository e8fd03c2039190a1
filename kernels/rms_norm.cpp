#include <zero3/rms_norm.h>

#include "arguments.h"
#include "cpu/kernels.h"

namespace zero3 {
namespace {

void check_shape(std::string_view operation, const RmsNormShape& shape) {
  ZERO3_CHECK(shape.rows >= 0 && shape.width >= 0 && shape.granule_rows >= 1, operation, ": rows ",
              shape.rows, ", width ", shape.width, ", granule_rows ", shape.granule_rows,
              "; the first two have to be 0 or more, the last 1 or more");
}

/// What forward and backward have in common.
void check_operands(std::string_view operation, const TensorView& x, const TensorView& rstd,
                    const TensorView& weight, const RmsNormShape& shape, const Stream& stream) {
  const std::int64_t count = shape.rows * shape.width;
  check_operand(operation, "x", x, count, {DType::kF32, DType::kBF16}, stream);
  check_operand(operation, "rstd", rstd, shape.rows, {DType::kF32}, stream);
  check_operand(operation, "weight", weight, shape.width, {DType::kF32, DType::kBF16}, stream);
}

}  // namespace

void rms_norm_forward(TensorView y, TensorView rstd, TensorView x, TensorView weight,
                      const RmsNormShape& shape, Stream& stream) {
  constexpr auto kName = "rms_norm_forward";
  check_shape(kName, shape);
  check_operands(kName, x, rstd, weight, shape, stream);
  check_operand(kName, "y", y, shape.rows * shape.width, {x.dtype()}, stream);
  check_disjoint_or_same(kName, {"y", y}, {{"x", x}});
  check_disjoint(kName, {"y", y}, {{"rstd", rstd}, {"weight", weight}});
  check_disjoint(kName, {"rstd", rstd}, {{"x", x}, {"weight", weight}});
  if (y.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::rms_norm_forward(y, rstd, x, weight, shape, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda(kName);
  }
}

void rms_norm_backward(TensorView dx, TensorView dweight, TensorView dy, TensorView x,
                       TensorView rstd, TensorView weight, const RmsNormShape& shape, Into into,
                       TensorView workspace, Stream& stream) {
  constexpr auto kName = "rms_norm_backward";
  const std::int64_t count = shape.rows * shape.width;
  check_shape(kName, shape);
  check_operands(kName, x, rstd, weight, shape, stream);
  check_operand(kName, "dy", dy, count, {DType::kF32, DType::kBF16}, stream);
  check_operand(kName, "dx", dx, count, {DType::kF32, DType::kBF16}, stream);
  check_disjoint_or_same(kName, {"dx", dx}, {{"dy", dy}});
  check_disjoint(kName, {"dx", dx}, {{"x", x}, {"rstd", rstd}, {"weight", weight}});
  if (dx.empty()) return;
  if (!dweight.empty()) {
    check_operand(kName, "dweight", dweight, shape.width, {DType::kF32}, stream);
    ZERO3_CHECK(workspace.dtype() == DType::kU8, kName, ": workspace is ", workspace.dtype(),
                " where uint8 is needed");
    for (const NamedView& written : {NamedView{"dweight", dweight}, {"workspace", workspace}}) {
      check_disjoint(kName, written,
                     {{"dx", dx}, {"dy", dy}, {"x", x}, {"rstd", rstd}, {"weight", weight}});
    }
    check_disjoint(kName, {"workspace", workspace}, {{"dweight", dweight}});
  }
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::rms_norm_backward(dx, dweight, dy, x, rstd, weight, shape, into, workspace,
                                    stream);
    case DeviceKind::kCuda:
      throw built_without_cuda(kName);
  }
}

Bytes rms_norm_workspace_bytes(const RmsNormShape& shape, int threads) {
  check_shape("rms_norm_workspace_bytes", shape);
  return cpu::rms_norm_workspace_bytes(shape, threads);
}

}  // namespace zero3
