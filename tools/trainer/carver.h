#pragma once

#include <algorithm>

#include <zero3/tensor_view.h>

namespace zero3::trainer {

/// Cuts a block of bytes into typed views, each at a multiple of kAlignment. Without a block it
/// only counts, so that one function both plans memory and hands it out.
class Carver {
 public:
  Carver() = default;
  /// `block` is kU8.
  explicit Carver(const TensorView& block) : block_(block), counting_(false) {}

  /// The next `count` elements; an empty view while counting. Throws UsageError where the block
  /// ends.
  [[nodiscard]] TensorView take(std::int64_t count, DType dtype) {
    const Bytes size = bytes_of(Elements(count), dtype);
    const Bytes begin = position_;
    rewind(position_ + aligned(size));
    if (counting_ || size.count() == 0) return {};
    ZERO3_CHECK(begin + size <= block_.bytes(), "a block of ", block_.bytes(),
                " is too small: ", begin + size, " are needed");
    return block_.slice(begin.count(), size.count()).as(dtype);
  }
  [[nodiscard]] Bytes position() const { return position_; }
  /// What is taken from here on may lie over what was taken behind `position`.
  void rewind(Bytes position) {
    position_ = position;
    used_ = std::max(used_, position);
  }
  /// Bytes that all takes together need.
  [[nodiscard]] Bytes used() const { return used_; }

 private:
  TensorView block_;
  bool counting_ = true;
  Bytes position_, used_;
};

}  // namespace zero3::trainer
