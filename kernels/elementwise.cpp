#include <zero3/elementwise.h>

#include "arguments.h"
#include "cpu/kernels.h"

namespace zero3 {

void add(TensorView out, TensorView a, TensorView b, Stream& stream) {
  const std::int64_t count = out.count();
  check_operand("add", "out", out, count, {DType::kF32, DType::kBF16}, stream);
  check_operand("add", "a", a, count, {DType::kF32, DType::kBF16}, stream);
  check_operand("add", "b", b, count, {DType::kF32, DType::kBF16}, stream);
  check_disjoint_or_same("add", {"out", out}, {{"a", a}, {"b", b}});
  if (out.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::add(out, a, b, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("add");
  }
}

void scale(TensorView out, TensorView x, float factor, Stream& stream) {
  const std::int64_t count = out.count();
  check_operand("scale", "out", out, count, {DType::kF32}, stream);
  check_operand("scale", "x", x, count, {DType::kF32}, stream);
  check_disjoint_or_same("scale", {"out", out}, {{"x", x}});
  if (out.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::scale(out, x, factor, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("scale");
  }
}

}  // namespace zero3
