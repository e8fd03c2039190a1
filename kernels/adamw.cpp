#include <zero3/adamw.h>

#include "arguments.h"
#include "cpu/kernels.h"

namespace zero3 {
namespace {

void check(const TensorView& weights, const TensorView& m, const TensorView& v,
           const TensorView& grads, const AdamWStep& step, const Stream& stream) {
  const std::int64_t count = weights.count();
  check_operand("adamw_step", "weights", weights, count, {DType::kF32}, stream);
  check_operand("adamw_step", "m", m, count, {DType::kF32}, stream);
  check_operand("adamw_step", "v", v, count, {DType::kF32}, stream);
  check_operand("adamw_step", "grads", grads, count, {DType::kF32}, stream);
  check_disjoint("adamw_step", {"weights", weights}, {{"m", m}, {"v", v}, {"grads", grads}});
  check_disjoint("adamw_step", {"m", m}, {{"v", v}, {"grads", grads}});
  check_disjoint("adamw_step", {"v", v}, {{"grads", grads}});
  ZERO3_CHECK(step.t >= 1, "adamw_step: t is ", step.t, "; steps are numbered from 1");
  ZERO3_CHECK(step.beta1 >= 0 && step.beta1 < 1 && step.beta2 >= 0 && step.beta2 < 1,
              "adamw_step: beta1 ", step.beta1, " and beta2 ", step.beta2, " have to be in [0, 1)");
}

}  // namespace

void adamw_step(TensorView weights, TensorView m, TensorView v, TensorView grads,
                const AdamWStep& step, Stream& stream) {
  check(weights, m, v, grads, step, stream);
  if (weights.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::adamw_step(weights, m, v, grads, step, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("adamw_step");
  }
}

}  // namespace zero3
