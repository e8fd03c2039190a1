#include "payload.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <zero3/error.h>
#include <zero3/half.h>

namespace zero3::collective {
namespace {

// The accumulator's block stays in the first-level cache while every rank's block passes by.
constexpr std::int64_t kBlock = 2048;

// As much as the last-level cache that a core can call its own, roughly.
constexpr std::int64_t kPastCache = std::int64_t{4} << 20;

#ifdef __SSE2__
constexpr std::int64_t kVector = 16;

/// `vectors` of them, to an aligned target.
void write_past_cache(std::byte* target, const std::byte* source, std::int64_t vectors) {
  auto* to = reinterpret_cast<__m128i*>(target);
  const auto* from = reinterpret_cast<const __m128i*>(source);
  for (std::int64_t i = 0; i < vectors; ++i) _mm_stream_si128(to + i, _mm_loadu_si128(from + i));
  // Others find out about these bytes by ordinary stores.
  _mm_sfence();
}
#endif

/// As copy_bytes, past the cache.
void copy_past_cache(std::byte* target, const std::byte* source, std::int64_t bytes) {
#ifdef __SSE2__
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(target));
  const std::int64_t head = std::min(bytes, (kVector - address % kVector) % kVector);
  const std::int64_t vectors = (bytes - head) / kVector;
  const std::int64_t done = head + vectors * kVector;
  std::memcpy(target, source, static_cast<std::size_t>(head));
  write_past_cache(target + head, source + head, vectors);
  std::memcpy(target + done, source + done, static_cast<std::size_t>(bytes - done));
#else
  std::memcpy(target, source, static_cast<std::size_t>(bytes));
#endif
}

template <class Wire>
float rounded(float value) {
  return static_cast<float>(Wire(value));
}

template <class Half>
void narrow_block(Half* __restrict target, const float* __restrict source, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) target[i] = Half(source[i]);
}

#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
/// Three quarters of the time of the loop that compilers make of the above.
void narrow_block(BFloat16* __restrict target, const float* __restrict source, std::int64_t count) {
  constexpr std::int64_t kStep = 32;
  constexpr int kSubnormal = 0x20;
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    const __m512 low = _mm512_loadu_ps(source + i);
    const __m512 high = _mm512_loadu_ps(source + i + kStep / 2);
    const auto subnormal = _mm512_kor(_mm512_fpclass_ps_mask(low, kSubnormal),
                                      _mm512_fpclass_ps_mask(high, kSubnormal));
    if (subnormal != 0) {
      // The instruction takes them for zeros.
      narrow_block<BFloat16>(target + i, source + i, kStep);
    } else {
      const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
      _mm512_storeu_si512(target + i, std::bit_cast<__m512i>(both));
    }
  }
  narrow_block<BFloat16>(target + i, source + i, count - i);
}
#endif

template <class Half>
void narrow_to(Half* target, const float* source, std::int64_t count) {
  if (count * static_cast<std::int64_t>(sizeof(Half)) < kPastCache) {
    narrow_block(target, source, count);
    return;
  }
  std::array<Half, kBlock> block;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, count - begin);
    narrow_block(block.data(), source + begin, length);
    copy_past_cache(reinterpret_cast<std::byte*>(target + begin),
                    reinterpret_cast<const std::byte*>(block.data()),
                    length * static_cast<std::int64_t>(sizeof(Half)));
  }
}

template <class Half>
void widen_from(float* __restrict target, const Half* __restrict source, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) target[i] = static_cast<float>(source[i]);
}

/// accumulator = [accumulator +] a + b, from left to right.
template <class Wire, Into into>
void take(float* __restrict accumulator, const float* a, const float* b, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = rounded<Wire>(a[i]);
    const float sum = into == Into::kReplace ? value : accumulator[i] + value;
    accumulator[i] = sum + rounded<Wire>(b[i]);
  }
}

/// accumulator = [accumulator +] a
template <class Wire, Into into>
void take(float* __restrict accumulator, const float* a, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = rounded<Wire>(a[i]);
    accumulator[i] = into == Into::kReplace ? value : accumulator[i] + value;
  }
}

template <class Wire, Into into>
void take_one_or_two(float* block, std::span<const void* const> contributions, std::int64_t begin,
                     std::int64_t length) {
  const float* a = static_cast<const float*>(contributions[0]) + begin;
  if (contributions.size() == 1) return take<Wire, into>(block, a, length);
  take<Wire, into>(block, a, static_cast<const float*>(contributions[1]) + begin, length);
}

/// Elements [begin, begin + length) of the sum, into `block`. A pass over it for each contribution
/// instead of each two takes a sixth longer.
template <class Wire>
void fold_block(float* block, std::span<const void* const> contributions, std::int64_t begin,
                std::int64_t length, Into into) {
  for (std::size_t i = 0; i < contributions.size(); i += 2) {
    const auto next = contributions.subspan(i, std::min<std::size_t>(2, contributions.size() - i));
    if (i == 0 && into == Into::kReplace) {
      take_one_or_two<Wire, Into::kReplace>(block, next, begin, length);
    } else {
      take_one_or_two<Wire, Into::kAccumulate>(block, next, begin, length);
    }
  }
}

template <class Wire>
void fold_as(float* accumulator, std::span<const void* const> contributions, std::int64_t count,
             Into into) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(float));
  const bool past_cache = into == Into::kReplace && count * kSize >= kPastCache;
  std::array<float, kBlock> block;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, count - begin);
    if (!past_cache) {
      fold_block<Wire>(accumulator + begin, contributions, begin, length, into);
      continue;
    }
    fold_block<Wire>(block.data(), contributions, begin, length, into);
    copy_past_cache(reinterpret_cast<std::byte*>(accumulator + begin),
                    reinterpret_cast<const std::byte*>(block.data()), length * kSize);
  }
}

template <class T>
void sum_as(T* target, std::span<const void* const> contributions, std::int64_t count) {
  std::array<T, kBlock> block;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, count - begin);
    std::copy_n(static_cast<const T*>(contributions[0]) + begin, length, block.data());
    for (const void* contribution : contributions.subspan(1)) {
      const T* source = static_cast<const T*>(contribution) + begin;
      for (std::int64_t i = 0; i < length; ++i) block[static_cast<std::size_t>(i)] += source[i];
    }
    std::copy_n(block.data(), length, target + begin);
  }
}

}  // namespace

void copy_bytes(std::byte* target, const std::byte* source, std::int64_t bytes) {
  if (bytes < kPastCache) {
    std::memcpy(target, source, static_cast<std::size_t>(bytes));
  } else {
    copy_past_cache(target, source, bytes);
  }
}

void narrow(void* target, DType dtype, const float* source, std::int64_t count) {
  if (dtype == DType::kBF16) {
    narrow_to(static_cast<BFloat16*>(target), source, count);
  } else {
    ZERO3_CHECK(dtype == DType::kF16, "fp32 cannot be narrowed to ", dtype);
    narrow_to(static_cast<Float16*>(target), source, count);
  }
}

void widen(float* target, const void* source, DType dtype, std::int64_t count) {
  if (dtype == DType::kBF16) {
    widen_from(target, static_cast<const BFloat16*>(source), count);
  } else {
    ZERO3_CHECK(dtype == DType::kF16, dtype, " cannot be widened to fp32");
    widen_from(target, static_cast<const Float16*>(source), count);
  }
}

void fold(float* accumulator, std::span<const void* const> contributions, std::int64_t count,
          Reduction reduction) {
  switch (reduction.wire) {
    case DType::kF32:
      return fold_as<float>(accumulator, contributions, count, reduction.into);
    case DType::kBF16:
      return fold_as<BFloat16>(accumulator, contributions, count, reduction.into);
    case DType::kF16:
      return fold_as<Float16>(accumulator, contributions, count, reduction.into);
    default:
      throw UsageError(concat("contributions cannot travel as ", reduction.wire));
  }
}

void sum(void* target, std::span<const void* const> contributions, std::int64_t count,
         DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return sum_as(static_cast<float*>(target), contributions, count);
    case DType::kF64:
      return sum_as(static_cast<double*>(target), contributions, count);
    // Signed sums are made modulo 2^64, so that an overflow is a wrong number and no undefined one.
    case DType::kI64:
    case DType::kU64:
      return sum_as(static_cast<std::uint64_t*>(target), contributions, count);
    default:
      throw UsageError(concat("sums of ", dtype, " are not made"));
  }
}

}  // namespace zero3::collective
