#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <zero3/device.h>
#include <zero3/internal/cpu_stream.h>

namespace zero3::test {

/// Which executor a test runs on: threads, or steps in the order of a seed.
struct Mode {
  std::optional<std::uint64_t> seed;

  [[nodiscard]] std::unique_ptr<internal::Executor> make_executor() const {
    if (!seed) return internal::make_threaded_executor();
    return internal::make_stepped_executor(*seed);
  }
  friend std::ostream& operator<<(std::ostream& out, const Mode& mode) {
    return mode.seed ? out << "seed" << *mode.seed : out << "threads";
  }
};

/// Threads, and every way in which the stepped executor chooses (its seeds modulo 8).
[[nodiscard]] inline std::vector<Mode> all_modes() {
  std::vector<Mode> modes{Mode{}};
  for (std::uint64_t seed = 0; seed < 8; ++seed) modes.push_back(Mode{seed});
  return modes;
}

/// A device on an executor of its own.
struct OwnDevice {
  explicit OwnDevice(const Mode& mode, const DeviceOptions& options = {.threads = 1})
      : executor(mode.make_executor()), device(internal::make_cpu_device(options, *executor)) {}

  [[nodiscard]] std::unique_ptr<Stream> stream(std::string name, int threads = 1) const {
    return device->make_stream({.name = std::move(name), .threads = threads});
  }

  std::unique_ptr<internal::Executor> executor;
  std::unique_ptr<Device> device;
};

/// A device on a stepped executor of its own, whose host turns and steps a test needs.
struct SteppedDevice {
  explicit SteppedDevice(std::uint64_t seed)
      : executor(internal::make_stepped_executor(seed)),
        device(internal::make_cpu_device({.threads = 1}, *executor)) {}

  [[nodiscard]] std::unique_ptr<Stream> stream(std::string name) const {
    return device->make_stream({.name = std::move(name)});
  }

  std::unique_ptr<internal::SteppedExecutor> executor;
  std::unique_ptr<Device> device;
};

}  // namespace zero3::test
