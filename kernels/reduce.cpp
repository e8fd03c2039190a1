#include <zero3/reduce.h>

#include "arguments.h"
#include "common/mix_math.h"
#include "cpu/kernels.h"

namespace zero3 {

void fold(TensorView accumulator, TensorView source, DType wire, Into into, Stream& stream) {
  const std::int64_t count = accumulator.count();
  check_operand("fold", "accumulator", accumulator, count, {DType::kF32}, stream);
  check_operand("fold", "source", source, count, {DType::kF32, DType::kBF16, DType::kF16}, stream);
  check_disjoint_or_same("fold", {"accumulator", accumulator}, {{"source", source}});
  ZERO3_CHECK(wire == DType::kF32 || wire == DType::kBF16 || wire == DType::kF16, "fold: wire is ",
              wire, "; choose fp32, bf16 or fp16");
  if (accumulator.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::fold(accumulator, source, wire, into, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("fold");
  }
}

void sum_in_order(TensorView out, TensorView values, Stream& stream) {
  check_operand("sum_in_order", "out", out, 1, {DType::kF64}, stream);
  check_operand("sum_in_order", "values", values, values.count(), {DType::kF64}, stream);
  check_disjoint("sum_in_order", {"out", out}, {{"values", values}});
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::sum_in_order(out, values, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("sum_in_order");
  }
}

void block_square_sums(TensorView sums, TensorView values, Stream& stream) {
  const std::int64_t blocks = div_ceil(values.count(), kNormBlock);
  check_operand("block_square_sums", "values", values, values.count(), {DType::kF32}, stream);
  check_operand("block_square_sums", "sums", sums, blocks, {DType::kF64}, stream);
  check_disjoint("block_square_sums", {"sums", sums}, {{"values", values}});
  if (values.empty()) return;
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::block_square_sums(sums, values, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("block_square_sums");
  }
}

void first_nonfinite(TensorView out, TensorView values, Stream& stream) {
  check_operand("first_nonfinite", "out", out, 1, {DType::kI64}, stream);
  check_operand("first_nonfinite", "values", values, values.count(),
                {DType::kF32, DType::kBF16, DType::kF16}, stream);
  check_disjoint("first_nonfinite", {"out", out}, {{"values", values}});
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::first_nonfinite(out, values, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("first_nonfinite");
  }
}

void checksum(TensorView out, TensorView values, std::int64_t first_index, Stream& stream) {
  check_operand("checksum", "out", out, 1, {DType::kU64}, stream);
  check_operand("checksum", "values", values, values.count(), {DType::kF32}, stream);
  check_disjoint("checksum", {"out", out}, {{"values", values}});
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::checksum(out, values, first_index, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("checksum");
  }
}

std::uint64_t mix64(std::uint64_t index, std::uint32_t bits) {
  return mix_element(index, bits);
}

}  // namespace zero3
