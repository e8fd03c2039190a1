#include "bench_commands.h"

#include <CLI/CLI.hpp>

#include "commands.h"
#include "flags.h"

namespace zero3::program {

std::vector<Command> add_bench_commands(CLI::App& program) {
  CLI::App* bench =
      add_command(program, "bench", "Measure a training step, and the limits of this machine");
  bench->require_subcommand(1);
  return {add_bench_step(*bench), add_bench_gemm(*bench), add_bench_comm(*bench),
          add_bench_optimizer(*bench)};
}

}  // namespace zero3::program
