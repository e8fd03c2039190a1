#include <zero3/swiglu.h>

#include "arguments.h"
#include "cpu/kernels.h"

namespace zero3 {
namespace {

void check_backward(const TensorView& d_gate, const TensorView& d_up, const TensorView& product,
                    const TensorView& d_out, const TensorView& gate, const TensorView& up,
                    const Stream& stream) {
  constexpr auto kName = "swiglu_backward";
  const std::int64_t count = gate.count();
  check_operand(kName, "gate", gate, count, {DType::kF32, DType::kBF16}, stream);
  check_operand(kName, "up", up, count, {gate.dtype()}, stream);
  check_operand(kName, "d_out", d_out, count, {gate.dtype()}, stream);
  check_operand(kName, "d_gate", d_gate, count, {gate.dtype()}, stream);
  check_operand(kName, "d_up", d_up, count, {gate.dtype()}, stream);
  check_disjoint(kName, {"d_gate", d_gate}, {{"d_up", d_up}});
  if (!product.empty()) {
    check_operand(kName, "product", product, count, {gate.dtype()}, stream);
    check_disjoint(kName, {"product", product}, {{"d_gate", d_gate}, {"d_up", d_up}});
  }
  for (const NamedView& out :
       {NamedView{"d_gate", d_gate}, NamedView{"d_up", d_up}, NamedView{"product", product}}) {
    check_disjoint_or_same(kName, out, {{"d_out", d_out}, {"gate", gate}, {"up", up}});
  }
}

}  // namespace

void swiglu_forward(TensorView out, TensorView gate, TensorView up, Stream& stream) {
  const std::int64_t count = gate.count();
  check_operand("swiglu_forward", "gate", gate, count, {DType::kF32, DType::kBF16}, stream);
  check_operand("swiglu_forward", "up", up, count, {gate.dtype()}, stream);
  check_operand("swiglu_forward", "out", out, count, {gate.dtype()}, stream);
  check_disjoint_or_same("swiglu_forward", {"out", out}, {{"gate", gate}, {"up", up}});
  if (gate.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::swiglu_forward(out, gate, up, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("swiglu_forward");
  }
}

void swiglu_backward(TensorView d_gate, TensorView d_up, TensorView product, TensorView d_out,
                     TensorView gate, TensorView up, Stream& stream) {
  check_backward(d_gate, d_up, product, d_out, gate, up, stream);
  if (gate.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::swiglu_backward(d_gate, d_up, product, d_out, gate, up, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("swiglu_backward");
  }
}

}  // namespace zero3
