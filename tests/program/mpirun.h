#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/spawn.h"

namespace zero3::test {

inline constexpr const char* kMpirun = "/usr/bin/mpirun";

/// In SetUp or at the head of a test.
#define skip_without_mpirun()                              \
  if (!std::filesystem::exists(kMpirun)) {                 \
    GTEST_SKIP() << "no mpirun here; install openmpi-bin"; \
  }                                                        \
  static_assert(true)

inline std::vector<std::string> mpirun_environment() {
  return {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "OMPI_ALLOW_RUN_AS_ROOT=1",
          "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};
}

/// Runs a command by mpirun, as many times at once, however few the cores.
inline Ended mpirun(int ranks, const std::vector<std::string>& command,
                    const std::function<void(pid_t)>& watch = nullptr) {
  std::vector<std::string> arguments = {"--oversubscribe", "--bind-to", "none", "-n",
                                        std::to_string(ranks)};
  arguments.insert(arguments.end(), command.begin(), command.end());
  return spawn(kMpirun, arguments, {.environment = mpirun_environment(), .watch = watch});
}

/// The rest of the line that begins so; empty: there is none.
inline std::string line_of(const std::string& text, const std::string& beginning) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(beginning)) return line.substr(beginning.size());
  }
  return {};
}

}  // namespace zero3::test
