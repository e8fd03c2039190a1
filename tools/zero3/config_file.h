#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace zero3::program {

/// The arguments of a command with those of its `--config FILE`, if there is one, put in front, so
/// that given flags win. The file is a JSON object whose keys are flags' names without dashes;
/// values are numbers, strings, booleans (true: the flag alone) and arrays (joined by commas).
/// Throws IoError, and UsageError naming the file and, for an unknown key, the nearest.
[[nodiscard]] std::vector<std::string> with_config_file(const CLI::App& command,
                                                        std::vector<std::string> arguments);

}  // namespace zero3::program
