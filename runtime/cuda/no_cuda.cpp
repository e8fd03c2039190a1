#include <zero3/error.h>
#include "cuda/cuda_device.h"

namespace zero3::cuda {

std::unique_ptr<Device> make_device(const DeviceOptions&) {
  throw DeviceError("device 'cuda': this zero3 was built without CUDA; choose cpu or cpu:sim");
}

}  // namespace zero3::cuda
