#pragma once

#include <vector>

#include "command_line.h"

namespace zero3::program {

[[nodiscard]] Command add_train_command(CLI::App& program);
[[nodiscard]] Command add_estimate_command(CLI::App& program);
/// `bench` and its parts.
[[nodiscard]] std::vector<Command> add_bench_commands(CLI::App& program);

}  // namespace zero3::program
