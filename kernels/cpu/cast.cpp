#include <cstring>
#include <type_traits>

#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {
namespace {

template <class T, class S>
void cast_range(T* target, const S* source, std::int64_t begin, std::int64_t end) {
  if constexpr (std::is_same_v<T, S>) {
    std::memcpy(target + begin, source + begin, static_cast<std::size_t>(end - begin) * sizeof(T));
  } else {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) store(target + i, static_cast<float>(source[i]));
  }
}

template <class Half>
void round_range(float* x, std::int64_t begin, std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    x[i] = static_cast<float>(static_cast<Half>(x[i]));
  }
}

}  // namespace

void cast(TensorView target, TensorView source, Stream& stream) {
  const std::int64_t count = target.count();
  visit<float, BFloat16, Float16>(target, [&](auto* to) {
    visit<float, BFloat16, Float16>(source, [&](auto* from) {
      enqueue(stream, "cast", {target}, {source}, [=] {
        parallel_for(count, kGrain, [=](std::int64_t begin, std::int64_t end) {
          cast_range(to, from, begin, end);
        });
      });
    });
  });
}

void round_to(TensorView values, DType dtype, Stream& stream) {
  auto* x = internal::native<float>(values);
  const std::int64_t count = values.count();
  enqueue(stream, "round_to", {}, {}, [=] {
    parallel_for(count, kGrain, [=](std::int64_t begin, std::int64_t end) {
      if (dtype == DType::kBF16) {
        round_range<BFloat16>(x, begin, end);
      } else {
        round_range<Float16>(x, begin, end);
      }
    });
  });
}

}  // namespace zero3::cpu
