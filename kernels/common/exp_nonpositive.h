#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "common/host_device.h"

namespace zero3 {

/// e^x for x <= 0 in fp32, within 1 ulp: what softmax and the logistic function need. 0 for -inf
/// and below -87.7 (between there and -87.34 the result is subnormal), exactly 1 for 0, NaN for
/// NaN.
///
/// There is no upper end to watch, and fused multiply-adds round the same everywhere. x = n·ln 2 +
/// r with |r| <= ln(2)/2, and a minimax polynomial in r (relative error 3.2e-9) whose first two
/// coefficients are fixed at 1.
ZERO3_HD [[nodiscard]] inline float exp_nonpositive(float x) {
  // Here n = -127, which as an exponent field is the number 0.
  constexpr float kLow = -88.0F;
  // Adding 1.5·2^23 rounds to an integer, and leaves that integer in the low bits of the sum; 127
  // biases it.
  constexpr float kRound = 12582912.0F + 127.0F;
  const float clamped = x < kLow ? kLow : x;
  const float shifted = std::fma(clamped, 1.44269504F, kRound);
  const float n = shifted - kRound;
  float r = std::fma(n, -0.693147182F, clamped);
  r = std::fma(n, 1.90465421e-9F, r);
  float p = 1.383890281431377e-3F;
  p = std::fma(p, r, 8.369192481040955e-3F);
  p = std::fma(p, r, 4.166810214519501e-2F);
  p = std::fma(p, r, 1.6666516661643982e-1F);
  p = std::fma(p, r, 4.999999403953552e-1F);
  p = std::fma(p, r, 1.0F);
  p = std::fma(p, r, 1.0F);
  // A product, not an addition to the exponent: a NaN stays one.
  return p * std::bit_cast<float>(std::bit_cast<std::uint32_t>(shifted) << 23);
}

}  // namespace zero3
