#pragma once

#include <zero3/device.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// Owns a block of device memory. Movable, not copyable. Destruction returns the block in the order
/// of its home stream (the allocating one, or the one named by `set_home`), never throws, and ends
/// every view of it.
class Buffer {
 public:
  /// Owns nothing.
  Buffer() = default;
  /// A block of `size` elements for use by `stream` from now on; contents indeterminate. The stream
  /// outlives the buffer. Throws OutOfMemoryError.
  Buffer(Elements size, DType dtype, MemoryTag tag, Stream& stream);
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  [[nodiscard]] bool empty() const { return stream_ == nullptr; }
  [[nodiscard]] Elements size() const { return size_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  /// The whole buffer, seen until the buffer is destroyed, reset or moved from.
  [[nodiscard]] TensorView view() const;
  /// The stream, of the same device, in whose order the block is returned: one that has been made
  /// to wait for all other users. Throws UsageError for another device and for an empty buffer.
  void set_home(Stream& stream);
  /// Returns the block now.
  void reset() noexcept;

 private:
  Stream* stream_ = nullptr;
  void* data_ = nullptr;
  Elements size_;
  DType dtype_ = DType::kF32;
  MemoryTag tag_ = MemoryTag::kWorkspace;
  BlockRef block_;
};

}  // namespace zero3
