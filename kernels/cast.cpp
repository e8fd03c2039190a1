#include <zero3/cast.h>

#include "arguments.h"
#include "cpu/kernels.h"

namespace zero3 {

void cast(TensorView target, TensorView source, Stream& stream) {
  const std::int64_t count = target.count();
  check_operand("cast", "target", target, count, {DType::kF32, DType::kBF16, DType::kF16}, stream);
  check_operand("cast", "source", source, count, {DType::kF32, DType::kBF16, DType::kF16}, stream);
  check_disjoint("cast", {"target", target}, {{"source", source}});
  if (target.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::cast(target, source, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("cast");
  }
}

void round_to(TensorView values, DType dtype, Stream& stream) {
  check_operand("round_to", "values", values, values.count(), {DType::kF32}, stream);
  ZERO3_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16,
              "round_to: ", dtype, " is not one of fp32, bf16, fp16");
  if (values.empty() || dtype == DType::kF32) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::round_to(values, dtype, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("round_to");
  }
}

}  // namespace zero3
