#include <atomic>
#include <bit>
#include <type_traits>

#include "common/mix_math.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {
namespace {

/// `value` rounded to W; T can hold more than W only if the two differ and W is not fp32.
template <class W, class T>
float on_wire(T value) {
  if constexpr (std::is_same_v<W, T> || std::is_same_v<W, float>) {
    return static_cast<float>(value);
  } else {
    return static_cast<float>(static_cast<W>(static_cast<float>(value)));
  }
}

template <class W, class T>
void fold_range(float* accumulator, const T* source, Into into, std::int64_t begin,
                std::int64_t end) {
  if (into == Into::kReplace) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) accumulator[i] = on_wire<W>(source[i]);
  } else {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) accumulator[i] += on_wire<W>(source[i]);
  }
}

/// Blocks whose sums run side by side: one block alone would wait for each of its additions.
constexpr std::int64_t kSideBySide = 8;

/// The square sums of kSideBySide whole blocks.
void square_sums(double* sums, const float* x) {
  double lanes[kSideBySide] = {};
  for (std::int64_t i = 0; i < kNormBlock; ++i) {
    for (std::int64_t block = 0; block < kSideBySide; ++block) {
      const auto value = static_cast<double>(x[block * kNormBlock + i]);
      lanes[block] += value * value;
    }
  }
  for (std::int64_t block = 0; block < kSideBySide; ++block) sums[block] = lanes[block];
}

double square_sum(const float* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

/// The bits of an infinity; larger magnitudes are NaNs.
template <class T>
constexpr auto kInfinity = static_cast<std::uint16_t>(0);
template <>
constexpr auto kInfinity<float> = std::uint32_t{0x7f800000U};
template <>
constexpr auto kInfinity<BFloat16> = std::uint16_t{0x7f80U};
template <>
constexpr auto kInfinity<Float16> = std::uint16_t{0x7c00U};

template <class T>
bool nonfinite(T value) {
  constexpr auto kExponent = kInfinity<T>;
  const auto bits = std::bit_cast<std::remove_const_t<decltype(kExponent)>>(value);
  return (bits & kExponent) == kExponent;
}

/// Index of the first element of [begin, end) that is not finite, or `end`.
template <class T>
std::int64_t find_nonfinite(const T* x, std::int64_t begin, std::int64_t end) {
  unsigned any = 0;
#pragma omp simd reduction(| : any)
  for (std::int64_t i = begin; i < end; ++i) any |= nonfinite(x[i]) ? 1U : 0U;
  if (any == 0) return end;
  return std::find_if(x + begin, x + end, nonfinite<T>) - x;
}

void store_smaller(std::atomic<std::int64_t>& target, std::int64_t value) {
  std::int64_t current = target.load(std::memory_order_relaxed);
  while (value < current && !target.compare_exchange_weak(current, value)) {
  }
}

}  // namespace

void fold(TensorView accumulator, TensorView source, DType wire, Into into, Stream& stream) {
  auto* sum = internal::native<float>(accumulator);
  const std::int64_t count = accumulator.count();
  const auto run = [&]<class W>(W*) {
    visit<float, BFloat16, Float16>(source, [&](const auto* from) {
      const auto body = [=](std::int64_t begin, std::int64_t end) {
        fold_range<W>(sum, from, into, begin, end);
      };
      const auto task = [=] { parallel_for(count, kGrain, body); };
      if (into == Into::kReplace) {
        enqueue(stream, "fold", {accumulator}, {source}, task);
      } else {
        enqueue(stream, "fold", {}, {}, task);
      }
    });
  };
  switch (wire) {
    case DType::kBF16:
      return run(static_cast<BFloat16*>(nullptr));
    case DType::kF16:
      return run(static_cast<Float16*>(nullptr));
    default:
      return run(static_cast<float*>(nullptr));
  }
}

void sum_in_order(TensorView out, TensorView values, Stream& stream) {
  auto* sum = internal::native<double>(out);
  const auto* x = internal::native<double>(values);
  enqueue(stream, "sum_in_order", {out}, {values}, [=, count = values.count()] {
    double total = 0;
    for (std::int64_t i = 0; i < count; ++i) total += x[i];
    *sum = total;
  });
}

void block_square_sums(TensorView sums, TensorView values, Stream& stream) {
  auto* to = internal::native<double>(sums);
  const auto* x = internal::native<float>(values);
  const std::int64_t count = values.count();
  enqueue(stream, "block_square_sums", {sums}, {values}, [=] {
    constexpr std::int64_t kTogether = kSideBySide * kNormBlock;
    parallel_for(count, kTogether, [=](std::int64_t begin, std::int64_t end) {
      if (end - begin == kTogether) return square_sums(to + begin / kNormBlock, x + begin);
      for (std::int64_t at = begin; at < end; at += kNormBlock) {
        to[at / kNormBlock] = square_sum(x + at, std::min(kNormBlock, end - at));
      }
    });
  });
}

void first_nonfinite(TensorView out, TensorView values, Stream& stream) {
  auto* index = internal::native<std::int64_t>(out);
  const std::int64_t count = values.count();
  visit<float, BFloat16, Float16>(values, [&](const auto* x) {
    enqueue(stream, "first_nonfinite", {out}, {values}, [=] {
      std::atomic<std::int64_t> first = count;
      parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t found = find_nonfinite(x, begin, end);
        if (found < end) store_smaller(first, found);
      });
      *index = first.load() < count ? first.load() : -1;
    });
  });
}

void checksum(TensorView out, TensorView values, std::int64_t first_index, Stream& stream) {
  auto* total = internal::native<std::uint64_t>(out);
  const auto* x = internal::native<float>(values);
  enqueue(stream, "checksum", {out}, {values}, [=, count = values.count()] {
    // Sums modulo 2^64 do not depend on their order.
    std::atomic<std::uint64_t> sum = 0;
    parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
      std::uint64_t part = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        part += mix_element(static_cast<std::uint64_t>(first_index + i),
                            std::bit_cast<std::uint32_t>(x[i]));
      }
      sum.fetch_add(part, std::memory_order_relaxed);
    });
    *total = sum.load();
  });
}

}  // namespace zero3::cpu
