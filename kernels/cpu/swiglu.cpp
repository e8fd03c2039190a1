#include "common/swiglu_math.h"

#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {
namespace {

template <class T>
void forward_range(T* out, const T* gate, const T* up, std::int64_t begin, std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    store(out + i, swiglu_element(static_cast<float>(gate[i]), static_cast<float>(up[i])));
  }
}

template <class T>
struct BackwardArrays {
  T *d_gate, *d_up, *product;
  const T *d_out, *gate, *up;
};

template <bool kWithProduct, class T>
void backward_range(const BackwardArrays<T>& a, std::int64_t begin, std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const SwigluGradients d = swiglu_gradients(
        static_cast<float>(a.d_out[i]), static_cast<float>(a.gate[i]), static_cast<float>(a.up[i]));
    store(a.d_gate + i, d.gate);
    store(a.d_up + i, d.up);
    if constexpr (kWithProduct) store(a.product + i, d.product);
  }
}

}  // namespace

void swiglu_forward(TensorView out, TensorView gate, TensorView up, Stream& stream) {
  visit<float, BFloat16>(gate, [&]<class T>(T* gate_data) {
    auto* out_data = internal::native<T>(out);
    const auto* up_data = internal::native<T>(up);
    const std::int64_t count = gate.count();
    enqueue(stream, "swiglu_forward", {out}, {gate, up}, [=] {
      parallel_for(count, kGrain, [=](std::int64_t begin, std::int64_t end) {
        forward_range<T>(out_data, gate_data, up_data, begin, end);
      });
    });
  });
}

void swiglu_backward(TensorView d_gate, TensorView d_up, TensorView product, TensorView d_out,
                     TensorView gate, TensorView up, Stream& stream) {
  visit<float, BFloat16>(gate, [&]<class T>(T* gate_data) {
    const BackwardArrays<T> arrays = {
        internal::native<T>(d_gate),
        internal::native<T>(d_up),
        product.empty() ? nullptr : internal::native<T>(product),
        internal::native<T>(d_out),
        gate_data,
        internal::native<T>(up),
    };
    const std::int64_t count = gate.count();
    enqueue(stream, "swiglu_backward", {d_gate, d_up, product}, {d_out, gate, up}, [=] {
      parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
        if (arrays.product != nullptr) {
          backward_range<true>(arrays, begin, end);
        } else {
          backward_range<false>(arrays, begin, end);
        }
      });
    });
  });
}

}  // namespace zero3::cpu
