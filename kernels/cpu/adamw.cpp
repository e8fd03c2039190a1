#include "common/adamw_math.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {

void adamw_step(TensorView weights, TensorView m, TensorView v, TensorView grads,
                const AdamWStep& step, Stream& stream) {
  auto* w_data = internal::native<float>(weights);
  auto* m_data = internal::native<float>(m);
  auto* v_data = internal::native<float>(v);
  const auto* g_data = internal::native<float>(grads);
  const std::int64_t count = weights.count();
  enqueue(stream, "adamw_step", {}, {}, [=, factors = AdamWFactors(step)] {
    parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const AdamWState next =
            adamw_element({w_data[i], m_data[i], v_data[i]}, g_data[i], factors);
        w_data[i] = next.w;
        m_data[i] = next.m;
        v_data[i] = next.v;
      }
    });
  });
}

}  // namespace zero3::cpu
