#pragma once

#include <cmath>

#include "common/exp_nonpositive.h"

namespace zero3 {

/// 1/(1 + e^-x), from e^-|x|, which cannot overflow.
ZERO3_HD [[nodiscard]] inline float logistic(float x) {
  const float e = exp_nonpositive(-std::fabs(x));
  const float numerator = x < 0.0F ? e : 1.0F;
  return numerator / (1.0F + e);
}

ZERO3_HD [[nodiscard]] inline float swiglu_element(float gate, float up) {
  return gate * logistic(gate) * up;
}

struct SwigluGradients {
  float gate, up, product;
};

/// silu(x) = x·s with s = logistic(x); silu'(x) = s·(1 + x·(1 − s)).
ZERO3_HD [[nodiscard]] inline SwigluGradients swiglu_gradients(float d_out, float gate, float up) {
  const float s = logistic(gate);
  const float silu = gate * s;
  return {(d_out * up) * (s * (1.0F + gate * (1.0F - s))), d_out * silu, silu * up};
}

}  // namespace zero3
