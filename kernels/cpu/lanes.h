#pragma once

#include <cstdint>
#include <limits>

namespace zero3::cpu {

/// Partial results that a sum or a maximum over an array is kept in. Fixed, so that the bits do not
/// depend on the vector width that the compiler chose.
inline constexpr std::int64_t kLanes = 32;

/// Σ f(i) for i in [0, n) in fp32: lane l adds the terms i ≡ l mod kLanes in order, then lanes are
/// added pairwise.
template <class F>
[[nodiscard]] inline float lane_sum(std::int64_t n, F&& f) {
  float lanes[kLanes] = {};
  const std::int64_t whole = n - n % kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += f(i + lane);
  }
  for (std::int64_t i = whole; i < n; ++i) lanes[i - whole] += f(i);
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

/// The largest of x[0..n), NaNs passed over; -inf if there is none.
[[nodiscard]] inline float lane_max(const float* x, std::int64_t n) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  const std::int64_t whole = n - n % kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    }
  }
  float largest = lanes[0];
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  for (std::int64_t i = whole; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

}  // namespace zero3::cpu
