#include <zero3/device.h>

#include <sched.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include <zero3/error.h>
#include "cpu/cpu_device.h"
#include "cuda/cuda_device.h"

namespace zero3 {
namespace {

constexpr std::array kKinds = {std::pair{DeviceKind::kCpu, std::string_view("cpu")},
                               std::pair{DeviceKind::kCpuSim, std::string_view("cpu:sim")},
                               std::pair{DeviceKind::kCuda, std::string_view("cuda")}};

}  // namespace

Device::~Device() = default;

std::string_view name_of(DeviceKind kind) {
  for (const auto& [value, name] : kKinds) {
    if (value == kind) return name;
  }
  return "unknown device";
}

DeviceKind parse_device_kind(std::string_view name) {
  for (const auto& [value, known] : kKinds) {
    if (known == name) return value;
  }
  throw UsageError(concat("unknown device '", name, "'; choose one of cpu, cpu:sim, cuda"));
}

int available_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return std::max(1, CPU_COUNT(&mask));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::unique_ptr<Device> make_device(const DeviceOptions& options) {
  if (options.kind == DeviceKind::kCuda) return cuda::make_device(options);
  return cpu::make_device_with_threads(options);
}

}  // namespace zero3
