#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {

void add(TensorView out, TensorView a, TensorView b, Stream& stream) {
  const std::int64_t count = out.count();
  visit<float, BFloat16>(out, [&](auto* sum) {
    visit<float, BFloat16>(a, [&](auto* left) {
      visit<float, BFloat16>(b, [&](auto* right) {
        enqueue(stream, "add", {out}, {a, b}, [=] {
          parallel_for(count, kGrain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
            for (std::int64_t i = begin; i < end; ++i) {
              store(sum + i, static_cast<float>(left[i]) + static_cast<float>(right[i]));
            }
          });
        });
      });
    });
  });
}

void scale(TensorView out, TensorView x, float factor, Stream& stream) {
  auto* to = internal::native<float>(out);
  const auto* from = internal::native<float>(x);
  const std::int64_t count = out.count();
  enqueue(stream, "scale", {out}, {x}, [=] {
    parallel_for(count, kGrain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) to[i] = from[i] * factor;
    });
  });
}

}  // namespace zero3::cpu
