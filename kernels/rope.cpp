#include <zero3/rope.h>

#include "arguments.h"
#include "cpu/kernels.h"

namespace zero3 {

void rope(TensorView x, TensorView cos, TensorView sin, const RopeShape& shape,
          RopeDirection direction, Stream& stream) {
  ZERO3_CHECK(shape.rows >= 0 && shape.heads >= 0 && shape.head_dim >= 0 && shape.head_dim % 2 == 0,
              "rope: rows ", shape.rows, ", heads ", shape.heads, ", head_dim ", shape.head_dim,
              "; all have to be 0 or more, and head_dim even");
  ZERO3_CHECK(shape.seq > 0 || shape.rows == 0, "rope: seq is ", shape.seq, " for ", shape.rows,
              " rows; give the positions that cos and sin hold");
  const std::int64_t half = shape.head_dim / 2;
  check_operand("rope", "x", x, shape.rows * shape.heads * shape.head_dim,
                {DType::kF32, DType::kBF16}, stream);
  if (x.empty()) return;
  check_operand("rope", "cos", cos, shape.seq * half, {DType::kF32}, stream);
  check_operand("rope", "sin", sin, shape.seq * half, {DType::kF32}, stream);
  check_disjoint("rope", {"x", x}, {{"cos", cos}, {"sin", sin}});
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::rope(x, cos, sin, shape, direction, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda("rope");
  }
}

}  // namespace zero3
