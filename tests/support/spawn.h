#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/temp_dir.h"

namespace zero3::test {

/// How a program ended.
struct Ended {
  /// Exit status; 128 + the signal that ended it; -1 if it was still running at the limit.
  int status = -1;
  std::string out, err;

  [[nodiscard]] std::vector<std::string> out_lines() const {
    std::vector<std::string> lines;
    std::istringstream text(out);
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
};

struct SpawnOptions {
  /// The whole environment, "NAME=value".
  std::vector<std::string> environment = {};
  std::chrono::seconds limit{120};
  /// Called now and then with the process's id while it runs.
  std::function<void(pid_t)> watch = nullptr;
};

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Runs a program to its end.
inline Ended spawn(const std::string& program, const std::vector<std::string>& arguments,
                   const SpawnOptions& options = {}) {
  const TempDir dir;
  const std::string out = (dir.path() / "out").string();
  const std::string err = (dir.path() / "err").string();
  const auto pointers = [](const std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
    all.push_back(nullptr);
    return all;
  };
  std::vector<std::string> all_arguments = {program};
  all_arguments.insert(all_arguments.end(), arguments.begin(), arguments.end());
  const std::vector<char*> argv = pointers(all_arguments);
  const std::vector<char*> environment = pointers(options.environment);

  const pid_t child = fork();
  if (child == 0) {
    constexpr mode_t kMode = 0600;
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(open(out.c_str(), O_WRONLY | O_CREAT, kMode), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT, kMode), STDERR_FILENO);
    execve(program.c_str(), argv.data(), environment.data());
    _exit(127);
  }
  Ended ended;
  int status = 0;
  bool in_time = true;
  const auto deadline = std::chrono::steady_clock::now() + options.limit;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      in_time = false;
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    if (options.watch) options.watch(child);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (in_time) ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ended.out = content_of(out);
  ended.err = content_of(err);
  return ended;
}

}  // namespace zero3::test
