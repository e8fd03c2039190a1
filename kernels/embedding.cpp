#include <zero3/embedding.h>

#include "arguments.h"
#include "cpu/kernels.h"

namespace zero3 {
namespace {

void check_shape(std::string_view operation, const TensorView& tokens, const EmbeddingShape& shape,
                 const Stream& stream) {
  ZERO3_CHECK(shape.rows >= 0 && shape.width >= 0 && shape.vocab >= 0, operation, ": rows ",
              shape.rows, ", width ", shape.width, " and vocab ", shape.vocab,
              " have to be 0 or more");
  check_operand(operation, "tokens", tokens, shape.rows, {DType::kI32}, stream);
}

}  // namespace

void embedding_forward(TensorView out, TensorView table, TensorView tokens,
                       const EmbeddingShape& shape, Stream& stream) {
  constexpr auto kName = "embedding_forward";
  check_shape(kName, tokens, shape, stream);
  check_operand(kName, "table", table, shape.vocab * shape.width, {DType::kF32, DType::kBF16},
                stream);
  check_operand(kName, "out", out, shape.rows * shape.width, {table.dtype()}, stream);
  check_disjoint(kName, {"out", out}, {{"table", table}, {"tokens", tokens}});
  if (out.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::embedding_forward(out, table, tokens, shape, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda(kName);
  }
}

void embedding_backward(TensorView d_table, TensorView d_out, TensorView tokens,
                        const EmbeddingShape& shape, Stream& stream) {
  constexpr auto kName = "embedding_backward";
  check_shape(kName, tokens, shape, stream);
  check_operand(kName, "d_table", d_table, shape.vocab * shape.width, {DType::kF32}, stream);
  check_operand(kName, "d_out", d_out, shape.rows * shape.width, {DType::kF32, DType::kBF16},
                stream);
  check_disjoint(kName, {"d_table", d_table}, {{"d_out", d_out}, {"tokens", tokens}});
  if (d_out.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::embedding_backward(d_table, d_out, tokens, shape, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda(kName);
  }
}

}  // namespace zero3
