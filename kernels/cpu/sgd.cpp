#include "common/sgd_math.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {

void sgd_step(TensorView weights, TensorView grads, const SgdStep& step, Stream& stream) {
  auto* w = internal::native<float>(weights);
  const auto* g = internal::native<float>(grads);
  const std::int64_t count = weights.count();
  enqueue(stream, "sgd_step", {}, {}, [=, factors = SgdFactors(step)] {
    parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) w[i] = sgd_element(w[i], g[i], factors);
    });
  });
}

}  // namespace zero3::cpu
