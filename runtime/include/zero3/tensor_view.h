#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <type_traits>
#include <vector>

#include <zero3/error.h>
#include <zero3/half.h>
#include <zero3/units.h>

namespace zero3 {

class Device;

/// One buffer's entry in its device's BlockTable: the generation moves on when the buffer is gone.
struct BlockRef {
  const std::atomic<std::uint64_t>* slot = nullptr;
  std::uint64_t generation = 0;

  [[nodiscard]] bool alive() const {
    return slot == nullptr || slot->load(std::memory_order_acquire) == generation;
  }
};

/// Slots that live as long as the device and are reused with a higher generation. Thread-safe.
class BlockTable {
 public:
  [[nodiscard]] BlockRef acquire();
  /// The same slot in its next generation: earlier references are dead.
  [[nodiscard]] BlockRef renew(BlockRef block) noexcept;
  void release(BlockRef block) noexcept;

 private:
  std::mutex mutex_;
  std::deque<std::atomic<std::uint64_t>> slots_;
  std::vector<std::atomic<std::uint64_t>*> free_;
};

/// Looks at contiguous elements of one dtype on one device; owns nothing. Shapes are arguments of
/// the operations, not of the view.
class TensorView {
 public:
  /// Sees nothing: 0 elements, no device.
  TensorView() = default;
  TensorView(void* data, Elements size, DType dtype, Device& device, BlockRef block)
      : data_(static_cast<std::byte*>(data)),
        size_(size),
        device_(&device),
        block_(block),
        dtype_(dtype) {}

  [[nodiscard]] Elements size() const { return size_; }
  [[nodiscard]] std::int64_t count() const { return size_.count(); }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] Bytes bytes() const { return bytes_of(size_, dtype_); }
  [[nodiscard]] bool empty() const { return size_.count() == 0; }
  /// Throws UsageError for a view without a device.
  [[nodiscard]] Device& device() const;
  /// The address on the device. Throws UsageError if the buffer is gone (released or moved from).
  [[nodiscard]] void* data() const;
  /// False once the buffer it looks at is gone.
  [[nodiscard]] bool alive() const { return block_.alive(); }

  /// `count` elements from `begin` on. Throws UsageError when they are not inside.
  [[nodiscard]] TensorView slice(Elements begin, Elements count) const;
  [[nodiscard]] TensorView slice(std::int64_t begin, std::int64_t count) const {
    return slice(Elements(begin), Elements(count));
  }
  /// The same bytes as elements of another dtype; the size must divide, and the first byte be
  /// aligned for it. Throws UsageError otherwise.
  [[nodiscard]] TensorView as(DType dtype) const;

  /// Direct access by the host, in stream order, on devices whose memory the host may touch. Throws
  /// UsageError on others, for another element type, and when the buffer is gone.
  template <class T>
  [[nodiscard]] std::span<T> host_span() const {
    constexpr DType kWanted = kDTypeOf<std::remove_const_t<T>>;
    static_assert(sizeof(T) == static_cast<std::size_t>(size_of(kWanted)),
                  "no dtype has this type");
    check_host_access(kWanted);
    return {static_cast<T*>(data()), static_cast<std::size_t>(size_.count())};
  }

 private:
  void check_host_access(DType wanted) const;

  std::byte* data_ = nullptr;
  Elements size_;
  Device* device_ = nullptr;
  BlockRef block_;
  DType dtype_ = DType::kF32;
};

}  // namespace zero3
