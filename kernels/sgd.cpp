#include <zero3/sgd.h>

#include "arguments.h"
#include "cpu/kernels.h"

namespace zero3 {

void sgd_step(TensorView weights, TensorView grads, const SgdStep& step, Stream& stream) {
  check_operand("sgd_step", "weights", weights, weights.count(), {DType::kF32}, stream);
  check_operand("sgd_step", "grads", grads, weights.count(), {DType::kF32}, stream);
  check_disjoint("sgd_step", {"weights", weights}, {{"grads", grads}});
  if (weights.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::sgd_step(weights, grads, step, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("sgd_step");
  }
}

}  // namespace zero3
