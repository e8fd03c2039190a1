#pragma once

#include "command_line.h"

namespace zero3::program {

/// One optimizer step of a model on random tokens, as a JSON line that can be compared with other
/// trainers'.
[[nodiscard]] Command add_bench_step(CLI::App& bench);
/// The products of a model's layers, one by one.
[[nodiscard]] Command add_bench_gemm(CLI::App& bench);
/// Collectives between ranks.
[[nodiscard]] Command add_bench_comm(CLI::App& bench);
/// Optimizer updates, and a plain copy beside them.
[[nodiscard]] Command add_bench_optimizer(CLI::App& bench);

}  // namespace zero3::program
