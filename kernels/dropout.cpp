#include <zero3/dropout.h>

#include "arguments.h"
#include "cpu/kernels.h"

namespace zero3 {

void dropout(TensorView target, TensorView source, std::int64_t width, float probability,
             const DropoutDraw& draw, Stream& stream) {
  const std::int64_t count = target.count();
  check_operand("dropout", "target", target, count, {DType::kF32, DType::kBF16}, stream);
  check_operand("dropout", "source", source, count, {target.dtype()}, stream);
  check_disjoint_or_same("dropout", {"target", target}, {{"source", source}});
  ZERO3_CHECK(probability >= 0 && probability < 1, "dropout with probability ", probability,
              "; give one from 0 to below 1");
  ZERO3_CHECK(width >= 1 && count % width == 0, "dropout: ", count, " elements are no rows of ",
              width);
  if (target.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::dropout(target, source, width, probability, draw, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("dropout");
  }
}

}  // namespace zero3
