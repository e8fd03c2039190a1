#pragma once

#include <cmath>

#include <zero3/adamw.h>

#include "common/host_device.h"

namespace zero3 {

/// The factors of one step, computed in double and rounded once.
struct AdamWFactors {
  float grad_scale, keep, beta1, new1, beta2, new2, step_size, unbias2, eps;

  explicit AdamWFactors(const AdamWStep& step)
      : grad_scale(static_cast<float>(step.grad_scale)),
        keep(static_cast<float>(1.0 - step.learning_rate * step.weight_decay)),
        beta1(static_cast<float>(step.beta1)),
        new1(static_cast<float>(1.0 - step.beta1)),
        beta2(static_cast<float>(step.beta2)),
        new2(static_cast<float>(1.0 - step.beta2)),
        step_size(static_cast<float>(step.learning_rate / bias(step.beta1, step.t))),
        unbias2(static_cast<float>(1.0 / std::sqrt(bias(step.beta2, step.t)))),
        eps(static_cast<float>(step.eps)) {}

 private:
  static double bias(double beta, std::int64_t t) {
    return 1.0 - std::pow(beta, static_cast<double>(t));
  }
};

struct AdamWState {
  float w, m, v;
};

ZERO3_HD [[nodiscard]] inline AdamWState adamw_element(AdamWState s, float grad,
                                                       const AdamWFactors& f) {
  const float g = grad * f.grad_scale;
  const float m = f.beta1 * s.m + f.new1 * g;
  const float v = f.beta2 * s.v + (f.new2 * g) * g;
  const float denominator = std::sqrt(v) * f.unbias2 + f.eps;
  const float w = s.w * f.keep - (f.step_size * m) / denominator;
  return {w, m, v};
}

}  // namespace zero3
