#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "engine_ops.h"

/// An engine whose weights show the sums of gradients.
namespace zero3::test {

/// Plain gradient descent with rate 1 and no divisor: the weights are minus the gradient sums.
inline EngineOptions sums_options(int micro_steps = 1) {
  return {.optimizer = OptimizerKind::kSgd, .micro_steps = micro_steps};
}

inline void step(Engine& engine, double divisor = 1.0) {
  ASSERT_TRUE(engine.step({.learning_rate = 1.0, .divisor = divisor}).applied);
}

inline std::int64_t reductions(const Engine& engine) {
  return engine.comm_counters()[CollectiveOp::kReduceScatter].count;
}

}  // namespace zero3::test
