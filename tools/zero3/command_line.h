#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace zero3::program {

/// One command of the program, registered with its flags.
struct Command {
  CLI::App* app = nullptr;
  /// Called after parsing. Finds everything that is wrong with usage and input (exit status 2),
  /// before any work; what the returned function throws is a failure of the work (exit status 1).
  std::function<std::function<void()>()> prepare;
};

/// The flags of a command with their dashes, without --help.
[[nodiscard]] std::vector<std::string> flag_names(const CLI::App& command);

/// Parses the arguments after the program's name and runs the command. Returns the exit status;
/// errors are a line or two on standard error.
[[nodiscard]] int run_program(std::vector<std::string> arguments);

}  // namespace zero3::program
