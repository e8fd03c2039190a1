#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include <support/backends.h>
#include <zero3/internal/cpu_stream.h>

namespace zero3::test {

/// Around every vector width, lane count, block and grain of the loops; 20011 is a prime.
inline constexpr std::int64_t kSizes[] = {0, 1, 2, 7, 8, 9, 31, 32, 33, 1023, 1024, 1025, 20011};

[[nodiscard]] inline std::vector<float> normal_values(std::int64_t count, std::uint32_t seed,
                                                      float deviation = 1.0F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

/// Uniform in [0, bound).
[[nodiscard]] inline std::vector<std::int32_t> index_values(std::int64_t count, std::uint32_t seed,
                                                            std::int32_t bound) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<std::int32_t> uniform(0, bound - 1);
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  for (std::int32_t& value : values) value = uniform(engine);
  return values;
}

/// Each value converted on its own.
template <class To, class From>
[[nodiscard]] std::vector<To> convert(const std::vector<From>& values) {
  std::vector<To> converted;
  converted.reserve(values.size());
  for (const From& value : values) {
    converted.push_back(static_cast<To>(static_cast<float>(value)));
  }
  return converted;
}

/// The bit patterns, which tell -0 from +0 and make NaNs comparable.
template <class T>
[[nodiscard]] auto bits_of(const std::vector<T>& values) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
  std::vector<Bits> bits;
  bits.reserve(values.size());
  for (const T& value : values) bits.push_back(std::bit_cast<Bits>(value));
  return bits;
}

/// The largest |got − want| / max(|want|, floor); infinite if a value is not finite or the sizes
/// differ.
template <class T>
[[nodiscard]] double relative_error(const std::vector<T>& got, const std::vector<double>& want,
                                    double floor = 1.0) {
  if (got.size() != want.size()) return HUGE_VAL;
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(static_cast<double>(static_cast<float>(got[i])) - want[i]);
    if (!std::isfinite(difference)) return HUGE_VAL;
    worst = std::max(worst, difference / std::max(std::abs(want[i]), floor));
  }
  return worst;
}

/// d f / d x, by central differences in double; `f` maps a vector to a number.
template <class F>
[[nodiscard]] std::vector<double> finite_differences(const std::vector<float>& x, F&& f) {
  constexpr double kStep = 1e-5;
  std::vector<double> at(x.begin(), x.end());
  std::vector<double> gradient;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double middle = at[i];
    at[i] = middle + kStep;
    const double above = f(at);
    at[i] = middle - kStep;
    gradient.push_back((above - f(at)) / (2.0 * kStep));
    at[i] = middle;
  }
  return gradient;
}

/// `run(bench)`, a vector, has the same bits on 1, 2 and 3 threads.
template <class Run>
void expect_same_bits_for_any_threads(Run&& run) {
  Bench one(DeviceKind::kCpu, 1);
  const auto want = bits_of(run(one));
  for (const int threads : {2, 3}) {
    Bench bench(DeviceKind::kCpu, threads);
    EXPECT_EQ(bits_of(run(bench)), want) << threads << " threads";
  }
}

/// A bench on the stepped executor, which spoils what operations say they overwrite before they
/// run: one that reads it after all shows.
struct SteppedBench {
  SteppedBench() : executor(internal::make_stepped_executor(1)) {
    bench.stream.reset();
    bench.device = internal::make_cpu_device({.threads = 1}, *executor);
    bench.stream = bench.device->make_stream({.name = "compute"});
  }

  std::unique_ptr<internal::Executor> executor;
  Bench bench;
};

/// `run(bench)`, a vector, has the same bits on "cpu", "cpu:sim" and the stepped executor.
template <class Run>
void expect_same_bits_on_every_device(Run&& run) {
  Bench cpu(DeviceKind::kCpu);
  Bench simulated(DeviceKind::kCpuSim);
  SteppedBench stepped;
  const auto want = bits_of(run(cpu));
  EXPECT_EQ(bits_of(run(simulated)), want) << "cpu:sim";
  EXPECT_EQ(bits_of(run(stepped.bench)), want) << "stepped";
}

}  // namespace zero3::test
