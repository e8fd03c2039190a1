#include <zero3/buffer.h>

#include <cstdint>
#include <utility>

namespace zero3 {

// The delegated constructor makes *this complete, so an exception below runs the destructor.
Buffer::Buffer(Elements size, DType dtype, MemoryTag tag, Stream& stream) : Buffer() {
  ZERO3_CHECK(size.count() >= 0 && size.count() <= (INT64_MAX - kAlignment) / size_of(dtype),
              "a buffer of ", size, ' ', dtype, " elements; its bytes must fit in 63 bits");
  Device& device = stream.device();
  data_ = device.memory().allocate(aligned(bytes_of(size, dtype)), tag, stream);
  size_ = size;
  dtype_ = dtype;
  tag_ = tag;
  stream_ = &stream;
  block_ = device.blocks().acquire();
}

Buffer::Buffer(Buffer&& other) noexcept {
  *this = std::move(other);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  stream_ = std::exchange(other.stream_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, Elements());
  dtype_ = other.dtype_;
  tag_ = other.tag_;
  block_ = std::exchange(other.block_, BlockRef());
  if (stream_ != nullptr) block_ = stream_->device().blocks().renew(block_);
  return *this;
}

TensorView Buffer::view() const {
  ZERO3_CHECK(!empty(), "view of an empty buffer; it was moved from, reset or never allocated");
  return {data_, size_, dtype_, stream_->device(), block_};
}

void Buffer::set_home(Stream& stream) {
  ZERO3_CHECK(!empty(), "stream '", stream.name(), "' cannot be the home of an empty buffer");
  ZERO3_CHECK(&stream.device() == &stream_->device(), "stream '", stream.name(),
              "' of another device cannot be the home of a buffer");
  stream_ = &stream;
}

void Buffer::reset() noexcept {
  if (empty()) return;
  Device& device = stream_->device();
  device.blocks().release(block_);
  device.memory().deallocate(data_, aligned(bytes_of(size_, dtype_)), tag_, *stream_);
  stream_ = nullptr;
  data_ = nullptr;
  size_ = Elements();
  block_ = BlockRef();
}

}  // namespace zero3
