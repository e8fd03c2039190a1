#pragma once

#include <cstdint>

#include <zero3/gemm.h>
#include <zero3/trainer/run_plan.h>

namespace zero3::program {

enum class GemmOp : std::uint8_t { kForward, kBackwardInput, kBackwardWeight };

/// Floating-point operations per second of a product, the best of repetitions that take about
/// `seconds` in all.
[[nodiscard]] double measure_gemm(GemmOp op, LinearShape shape, DType dtype,
                                  const trainer::RunPlace& place, double seconds);

/// What all ranks of the place together can reach at most, from a large product.
[[nodiscard]] double measure_matrix_peak(DType dtype, const trainer::RunPlace& place);

}  // namespace zero3::program
