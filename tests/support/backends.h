#pragma once

#include <memory>
#include <vector>

#include <zero3/buffer.h>
#include <zero3/copy.h>
#include <zero3/device.h>

namespace zero3::test {

/// A device with one compute stream, for tests of operations.
struct Bench {
  explicit Bench(DeviceKind kind = DeviceKind::kCpu, int threads = 1)
      : device(make_device(
            {.kind = kind, .threads = threads, .capacity = Bytes(1 << 28), .poison = true})),
        stream(device->make_stream({.name = "compute", .threads = threads})) {}

  template <class T>
  Buffer upload(const std::vector<T>& values) {
    Buffer buffer(Elements(static_cast<std::int64_t>(values.size())), kDTypeOf<T>,
                  MemoryTag::kWorkspace, *stream);
    copy_from_host(buffer.view(), values.data(), *stream);
    stream->synchronize();
    return buffer;
  }
  Buffer allocate(std::int64_t count, DType dtype = DType::kF32) {
    return Buffer(Elements(count), dtype, MemoryTag::kWorkspace, *stream);
  }
  template <class T>
  std::vector<T> download(const TensorView& view) {
    std::vector<T> values(static_cast<std::size_t>(view.count()));
    copy_to_host(values.data(), view, *stream);
    stream->synchronize();
    return values;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
};

}  // namespace zero3::test
