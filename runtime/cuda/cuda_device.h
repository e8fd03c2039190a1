#pragma once

#include <memory>

#include <zero3/device.h>

namespace zero3::cuda {

/// Throws DeviceError where CUDA is not built in or no device is there.
[[nodiscard]] std::unique_ptr<Device> make_device(const DeviceOptions& options);

}  // namespace zero3::cuda
