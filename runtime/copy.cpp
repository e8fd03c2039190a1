#include <zero3/copy.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <thread>

#include <zero3/device.h>
#include <zero3/internal/cpu_stream.h>

namespace zero3 {
namespace {

void check_cpu(const Stream& stream, const char* what) {
  if (stream.device().kind() == DeviceKind::kCuda) {
    throw DeviceError(concat(what, " on a CUDA stream: zero3 was built without CUDA"));
  }
}

/// Between host and device.
void enqueue_transfer(const char* name, Stream& stream, void* target, const void* source,
                      Bytes bytes) {
  const auto size = static_cast<std::size_t>(bytes.count());
  const double rate = static_cast<double>(internal::host_link(stream).count());
  const std::chrono::duration<double> least(rate > 0 ? static_cast<double>(size) / rate : 0);
  internal::enqueue(stream, {.name = name,
                             .run =
                                 [=] {
                                   // First, so that whoever reads the target before its time, or
                                   // writes to the source, is seen.
                                   if (least.count() > 0) std::this_thread::sleep_for(least);
                                   std::memcpy(target, source, size);
                                 },
                             .outputs = {{target, size}}});
}

void enqueue_copy(const char* name, Stream& stream, void* target, const void* source, Bytes bytes) {
  if (bytes.count() == 0) return;
  const auto size = static_cast<std::size_t>(bytes.count());
  internal::enqueue(stream, {.name = name,
                             .run = [target, source, size] { std::memcpy(target, source, size); },
                             .outputs = {{target, size}}});
}

}  // namespace

void copy(TensorView target, TensorView source, Stream& stream) {
  ZERO3_CHECK(target.dtype() == source.dtype() && target.size() == source.size(), "copy of ",
              source.size(), ' ', source.dtype(), " elements to ", target.size(), ' ',
              target.dtype(), " elements");
  check_cpu(stream, "copy");
  if (source.empty()) return;
  auto* to = static_cast<std::byte*>(internal::native_data(target));
  auto* from = static_cast<std::byte*>(internal::native_data(source));
  const std::int64_t size = source.bytes().count();
  const std::less_equal<> before;
  ZERO3_CHECK(before(to + size, from) || before(from + size, to), "copy of ", source.size(), ' ',
              source.dtype(), " elements onto a part of themselves");
  enqueue_copy("copy", stream, to, from, source.bytes());
}

void copy_from_host(TensorView target, const void* source, Stream& stream) {
  check_cpu(stream, "copy_from_host");
  if (target.empty()) return;
  ZERO3_CHECK(source != nullptr, "copy_from_host of ", target.bytes(), " from null");
  enqueue_transfer("copy_from_host", stream, internal::native_data(target), source, target.bytes());
}

void copy_to_host(void* target, TensorView source, Stream& stream) {
  check_cpu(stream, "copy_to_host");
  if (source.empty()) return;
  ZERO3_CHECK(target != nullptr, "copy_to_host of ", source.bytes(), " to null");
  enqueue_transfer("copy_to_host", stream, target, internal::native_data(source), source.bytes());
}

void fill_zero(TensorView target, Stream& stream) {
  check_cpu(stream, "fill_zero");
  if (target.empty()) return;
  void* data = internal::native_data(target);
  const auto size = static_cast<std::size_t>(target.bytes().count());
  internal::enqueue(stream, {.name = "fill_zero",
                             .run = [data, size] { std::memset(data, 0, size); },
                             .outputs = {{data, size}}});
}

}  // namespace zero3
