#include <zero3/cross_entropy.h>

#include "arguments.h"
#include "cpu/kernels.h"

namespace zero3 {

void cross_entropy(TensorView row_loss, TensorView d_logits, TensorView logits, TensorView targets,
                   const CrossEntropyShape& shape, Stream& stream) {
  constexpr auto kName = "cross_entropy";
  ZERO3_CHECK(shape.rows >= 0 && shape.vocab >= 1, kName, ": rows ", shape.rows, " and vocab ",
              shape.vocab, "; the first has to be 0 or more, the second 1 or more");
  const std::int64_t count = shape.rows * shape.vocab;
  check_operand(kName, "row_loss", row_loss, shape.rows, {DType::kF64}, stream);
  check_operand(kName, "logits", logits, count, {DType::kF32}, stream);
  check_operand(kName, "targets", targets, shape.rows, {DType::kI32}, stream);
  check_disjoint(kName, {"row_loss", row_loss}, {{"logits", logits}, {"targets", targets}});
  if (!d_logits.empty()) {
    check_operand(kName, "d_logits", d_logits, count, {DType::kF32, DType::kBF16}, stream);
    check_disjoint_or_same(kName, {"d_logits", d_logits}, {{"logits", logits}});
    check_disjoint(kName, {"d_logits", d_logits}, {{"row_loss", row_loss}, {"targets", targets}});
  }
  if (logits.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::cross_entropy(row_loss, d_logits, logits, targets, shape, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda(kName);
  }
}

}  // namespace zero3
