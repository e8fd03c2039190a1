#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <zero3/internal/cpu_stream.h>

#include "arguments.h"

namespace zero3::cpu {

/// Elements that a thread takes at a time in element-wise loops: small enough to share short arrays
/// out, large enough to hide the cost of taking.
inline constexpr std::int64_t kGrain = 16384;

/// Rows of `width` elements that come to about kGrain elements.
[[nodiscard]] constexpr std::int64_t rows_per_grain(std::int64_t width) {
  return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, width));
}

/// `written`: views that the task overwrites, `read`: those that it reads before. What is in both
/// is not an output in the sense of CpuTask, and may not be spoilt before the task runs.
inline void enqueue(Stream& stream, std::string name, std::initializer_list<TensorView> written,
                    std::initializer_list<TensorView> read, std::function<void()> run) {
  std::vector<internal::Output> outputs;
  for (const TensorView& view : written) {
    const auto shared = [&](const TensorView& other) { return overlap(view, other); };
    if (!view.empty() && std::none_of(read.begin(), read.end(), shared)) {
      outputs.push_back(internal::output(view));
    }
  }
  internal::enqueue(
      stream, {.name = std::move(name), .run = std::move(run), .outputs = std::move(outputs)});
}

/// Calls f with a view's address as the pointer type, of those listed, that fits its dtype.
template <class... Ts, class F>
void visit(const TensorView& view, F&& f) {
  const auto call = [&]<class T>(T*) {
    if (view.dtype() != kDTypeOf<T>) return false;
    f(internal::native<T>(view));
    return true;
  };
  if (!(call(static_cast<Ts*>(nullptr)) || ...)) {
    throw UsageError(concat("no CPU kernel for ", view.dtype()));
  }
}

/// *p = value, rounded once. Loops under "omp simd" store through this: g++ does not vectorise an
/// assignment of a class object that the loop body constructs.
template <class T>
inline void store(T* p, float value) {
  *p = static_cast<T>(value);
}

}  // namespace zero3::cpu
