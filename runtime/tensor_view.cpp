#include <zero3/tensor_view.h>

#include <zero3/device.h>

namespace zero3 {

BlockRef BlockTable::acquire() {
  const std::scoped_lock lock(mutex_);
  if (free_.empty()) {
    // Room for every slot, so that release() never allocates.
    free_.reserve(slots_.size() + 1);
    free_.push_back(&slots_.emplace_back(1));
  }
  auto* slot = free_.back();
  free_.pop_back();
  return {slot, slot->load(std::memory_order_relaxed)};
}

BlockRef BlockTable::renew(BlockRef block) noexcept {
  if (block.slot == nullptr) return block;
  auto* slot = const_cast<std::atomic<std::uint64_t>*>(block.slot);
  return {slot, slot->fetch_add(1, std::memory_order_acq_rel) + 1};
}

void BlockTable::release(BlockRef block) noexcept {
  if (block.slot == nullptr) return;
  const std::scoped_lock lock(mutex_);
  auto* slot = const_cast<std::atomic<std::uint64_t>*>(block.slot);
  slot->fetch_add(1, std::memory_order_release);
  free_.push_back(slot);
}

Device& TensorView::device() const {
  ZERO3_CHECK(device_ != nullptr,
              "a view of nothing has no device; give the operation a view of a buffer");
  return *device_;
}

void* TensorView::data() const {
  ZERO3_CHECK(block_.alive(), "a view of ", size_, " ", dtype_,
              " elements is used after its buffer was released or moved; take a new view from the "
              "live buffer");
  return data_;
}

TensorView TensorView::slice(Elements begin, Elements count) const {
  ZERO3_CHECK(begin.count() >= 0 && count.count() >= 0 && begin <= size_ && count <= size_ - begin,
              "slice of ", count, " elements from ", begin, " on is not inside a view of ", size_);
  TensorView part = *this;
  if (data_ != nullptr) part.data_ += bytes_of(begin, dtype_).count();
  part.size_ = count;
  return part;
}

TensorView TensorView::as(DType dtype) const {
  const auto divides = [dtype](std::int64_t n) { return n % size_of(dtype) == 0; };
  ZERO3_CHECK(divides(bytes().count()), bytes().count(), " bytes cannot be seen as whole ", dtype,
              " elements");
  ZERO3_CHECK(divides(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data_))),
              "a view that starts in the middle of ", dtype, " elements cannot be seen as such");
  TensorView other = *this;
  other.size_ = Elements(bytes().count() / size_of(dtype));
  other.dtype_ = dtype;
  return other;
}

void TensorView::check_host_access(DType wanted) const {
  ZERO3_CHECK(wanted == dtype_, "a view of ", dtype_, " is read by the host as ", wanted);
  ZERO3_CHECK(device_ == nullptr || device_->host_accessible(), "memory of device '",
              name_of(device_->kind()),
              "' cannot be touched by the host; use copy_to_host() or copy_from_host()");
}

}  // namespace zero3
