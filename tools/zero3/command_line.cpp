#include "command_line.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <zero3/device.h>
#include <zero3/error.h>
#include <zero3/gemm.h>
#include <zero3/mpi_world.h>
#include <zero3/trainer/nearest.h>
#include "commands.h"
#include "config_file.h"

namespace zero3::program {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

std::string version_text() {
  std::string usable;
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCpuSim, DeviceKind::kCuda}) {
    try {
      static_cast<void>(make_device({.kind = kind, .capacity = Bytes(1 << 20)}));
      usable += concat(usable.empty() ? "" : ", ", name_of(kind));
    } catch (const Error&) {
      // Not built or not present: not listed.
    }
  }
  const std::string mpi = mpi_library();
  return fmt::format(
      "zero3 {}\n"
      "compiled in: devices cpu, cpu:sim; communicators self, local{}; products by {}\n"
      "usable here: devices {}; communicators self, local{}\n",
      ZERO3_VERSION, mpi.empty() ? "" : concat(", mpi (", mpi, ")"), Gemm::backend_description(),
      usable, mpi.empty() ? "" : ", mpi");
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

/// The innermost command that the arguments begin with, and how many of them name it.
std::pair<CLI::App*, std::size_t> selected_command(CLI::App& program,
                                                   const std::vector<std::string>& arguments) {
  CLI::App* app = &program;
  std::size_t depth = 0;
  for (; depth < arguments.size(); ++depth) {
    const std::vector<std::string> names = command_names(*app);
    if (std::find(names.begin(), names.end(), arguments[depth]) == names.end()) break;
    app = app->get_subcommand(arguments[depth]);
  }
  return {app, depth};
}

/// What CLI11 found wrong, in terms of this program.
std::string describe(const CLI::ParseError& error, const CLI::App& program,
                     const CLI::App& command) {
  const std::string help = concat("see ", command.get_display_name(), " --help");
  const std::vector<std::string> extras = program.remaining(true);
  const std::vector<std::string> commands = command_names(command);
  if (!extras.empty()) {
    const std::string word = extras.front().substr(0, extras.front().find('='));
    if (word.starts_with('-')) {
      return concat("unknown flag ", word, "; the nearest is ",
                    trainer::nearest(word, flag_names(command)), " (", help, ")");
    }
    if (commands.empty()) return concat("unexpected argument '", word, "' (", help, ")");
    return concat("unknown command '", word, "'; the nearest is ", trainer::nearest(word, commands),
                  " (", help, ")");
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    return fmt::format("a command is needed: {} ({})", fmt::join(commands, ", "), help);
  }
  return error.what();
}

int report(int status, std::string_view text) {
  std::cerr << "zero3: " << text << '\n';
  return status;
}

int run_command(const Command& command) {
  std::function<void()> work;
  try {
    work = command.prepare();
  } catch (const std::exception& error) {
    return report(kWrongUsage, error.what());
  }
  try {
    work();
  } catch (const std::exception& error) {
    return report(kFailed, error.what());
  }
  return 0;
}

}  // namespace

std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty() || option->get_lnames().front() == "help") continue;
    names.push_back("--" + option->get_lnames().front());
  }
  return names;
}

int run_program(std::vector<std::string> arguments) {
  CLI::App program(
      "Trains language models with ZeRO-3: parameters, gradients and optimizer states sharded.",
      "zero3");
  program.require_subcommand(1);
  program.set_version_flag("--version", version_text);
  std::vector<Command> commands = {add_train_command(program), add_estimate_command(program)};
  for (Command& command : add_bench_commands(program)) commands.push_back(std::move(command));

  const auto [selected, depth] = selected_command(program, arguments);
  try {
    std::vector<std::string> flags(arguments.begin() + static_cast<std::ptrdiff_t>(depth),
                                   arguments.end());
    arguments.resize(depth);
    flags = with_config_file(*selected, std::move(flags));
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    std::reverse(arguments.begin(), arguments.end());  // The order in which CLI11 takes a vector
    program.parse(std::move(arguments));
  } catch (const CLI::Success& success) {
    return program.exit(success);
  } catch (const CLI::ParseError& error) {
    return report(kWrongUsage, describe(error, program, *selected));
  } catch (const std::exception& error) {
    return report(kWrongUsage, error.what());
  }
  for (const Command& command : commands) {
    if (command.app == selected) return run_command(command);
  }
  return report(kWrongUsage, "a command is needed (see zero3 --help)");
}

}  // namespace zero3::program
