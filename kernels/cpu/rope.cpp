#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {
namespace {

/// One head: channel i and channel i + half by the angle of pair i. `sign` is -1 for the transposed
/// rotation.
template <class T>
void rotate(T* x, const float* cos, const float* sin, float sign, std::int64_t half) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const auto first = static_cast<float>(x[i]);
    const auto second = static_cast<float>(x[i + half]);
    const float s = sign * sin[i];
    store(x + i, first * cos[i] - second * s);
    store(x + i + half, second * cos[i] + first * s);
  }
}

}  // namespace

void rope(TensorView x, TensorView cos, TensorView sin, const RopeShape& shape,
          RopeDirection direction, Stream& stream) {
  const auto* cos_data = internal::native<float>(cos);
  const auto* sin_data = internal::native<float>(sin);
  const float sign = direction == RopeDirection::kForward ? 1.0F : -1.0F;
  visit<float, BFloat16>(x, [&](auto* data) {
    enqueue(stream, "rope", {}, {}, [=] {
      const std::int64_t half = shape.head_dim / 2;
      const std::int64_t width = shape.heads * shape.head_dim;
      parallel_for(shape.rows, rows_per_grain(width), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const std::int64_t angle = row % shape.seq * half;
          for (std::int64_t head = 0; head < shape.heads; ++head) {
            rotate(data + row * width + head * shape.head_dim, cos_data + angle, sin_data + angle,
                   sign, half);
          }
        }
      });
    });
  });
}

}  // namespace zero3::cpu
