#include "bench_commands.h"

#include "commands.h"

namespace zero3::program {

std::vector<Command> add_bench_commands(CLI::App& program) {
  CLI::App* bench =
      program.add_subcommand("bench", "Measure a training step, and the limits of this machine");
  bench->require_subcommand(1);
  return {add_bench_step(*bench), add_bench_gemm(*bench), add_bench_comm(*bench),
          add_bench_optimizer(*bench)};
}

}  // namespace zero3::program
