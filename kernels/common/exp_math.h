#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace zero3 {

/// e^x in fp32 without branches or calls, so that compilers vectorise loops over it; within 1.5 ulp
/// of the exact value. Exactly 0 below -87.33 (also for -inf, and in place of subnormal results),
/// exactly 1 for 0, +inf above 88.7228, NaN for NaN. Range reduction and polynomial are those of
/// Cephes expf (Moshier 1989): x = n·ln 2 + r, |r| <= ln(2)/2.
[[nodiscard]] inline float exp_f32(float x) {
  constexpr float kLow = -87.33F;
  constexpr float kHigh = 88.722831F;
  // Adding 1.5·2^23 rounds to an integer, and leaves that integer in the low bits of the sum.
  constexpr float kRound = 12582912.0F;
  // NaN becomes kLow here, so that nothing below is undefined.
  const float above = x > kLow ? x : kLow;
  const float clamped = above < kHigh ? above : kHigh;
  const float shifted = clamped * 1.44269504F + kRound;
  const float n = shifted - kRound;
  // ln 2 in two parts; the upper one has 9 bits, so n times it is exact.
  const float r = (clamped - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = (p * (r * r) + r) + 1.0F;
  // p is in [0.7, 1.42]; times 2^n by adding n to the exponent, which reaches neither end in the
  // clamped range.
  const std::uint32_t scaled =
      std::bit_cast<std::uint32_t>(p) + (std::bit_cast<std::uint32_t>(shifted) << 23);
  float result = std::bit_cast<float>(scaled);
  result = x < kLow ? 0.0F : result;
  result = x > kHigh ? std::numeric_limits<float>::infinity() : result;
  return x != x ? x : result;
}

}  // namespace zero3
