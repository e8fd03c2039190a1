#pragma once

#include <algorithm>
#include <chrono>

#include <zero3/stream.h>

namespace zero3::program {

/// Seconds from the call of `enqueue` until the stream has run it.
template <class F>
[[nodiscard]] double seconds_of(Stream& stream, const F& enqueue) {
  const auto begin = std::chrono::steady_clock::now();
  enqueue();
  stream.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The fastest of `calls`, after one that warms up.
template <class F>
[[nodiscard]] double best_of(int calls, Stream& stream, const F& enqueue) {
  static_cast<void>(seconds_of(stream, enqueue));
  double best = seconds_of(stream, enqueue);
  for (int call = 1; call < calls; ++call) best = std::min(best, seconds_of(stream, enqueue));
  return best;
}

/// The fastest of as many calls as take about `seconds`.
template <class F>
[[nodiscard]] double best_within(double seconds, Stream& stream, const F& enqueue) {
  constexpr double kMaxCalls = 1000;
  const double first = best_of(1, stream, enqueue);
  const double calls = std::clamp(seconds / first, 1.0, kMaxCalls);
  return std::min(first, best_of(static_cast<int>(calls), stream, enqueue));
}

}  // namespace zero3::program
