#pragma once

#include <zero3/sgd.h>

#include "common/host_device.h"

namespace zero3 {

struct SgdFactors {
  float learning_rate, weight_decay, grad_scale;

  explicit SgdFactors(const SgdStep& step)
      : learning_rate(static_cast<float>(step.learning_rate)),
        weight_decay(static_cast<float>(step.weight_decay)),
        grad_scale(static_cast<float>(step.grad_scale)) {}
};

ZERO3_HD [[nodiscard]] inline float sgd_element(float w, float grad, const SgdFactors& f) {
  return w - f.learning_rate * (grad * f.grad_scale + f.weight_decay * w);
}

}  // namespace zero3
