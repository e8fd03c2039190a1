#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include <zero3/error.h>
#include "cpu/cpu_device.h"

namespace zero3::cpu {
namespace {

/// A simulated accelerator's memory: one file in memory, mapped for tasks, behind a range of
/// addresses of its own that nobody can touch. Buffers have the latter, so a host access outside of
/// a stream faults at once, at any time.
class SimulatedMemory final : public CpuMemory {
 public:
  explicit SimulatedMemory(Bytes capacity) : capacity_(aligned(capacity)) {
    ZERO3_CHECK(capacity.count() > 0, "device 'cpu:sim' of ", capacity, "; give it a capacity");
    const auto size = static_cast<std::size_t>(capacity_.count());
    const int file = memfd_create("zero3-sim", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, capacity_.count()) != 0) fail(file);
    backing_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    device_ = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (device_ == MAP_FAILED && backing_ != MAP_FAILED) munmap(backing_, size);
    if (backing_ == MAP_FAILED || device_ == MAP_FAILED) fail(-1);
    free_.emplace(0, capacity_.count());
  }

  SimulatedMemory(const SimulatedMemory&) = delete;
  SimulatedMemory& operator=(const SimulatedMemory&) = delete;
  ~SimulatedMemory() override {
    munmap(backing_, static_cast<std::size_t>(capacity_.count()));
    munmap(device_, static_cast<std::size_t>(capacity_.count()));
  }

  /// First fit.
  void* take(Bytes size) override {
    const std::scoped_lock lock(mutex_);
    for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
      const auto [offset, length] = *hole;
      if (length < size.count()) continue;
      free_.erase(hole);
      if (length > size.count()) free_.emplace(offset + size.count(), length - size.count());
      return static_cast<std::byte*>(device_) + offset;
    }
    throw OutOfMemoryError(
        concat("device 'cpu:sim' of ", capacity_, " has no block of ", size, " left"));
  }

  void give(void* block, Bytes size) noexcept override {
    const std::scoped_lock lock(mutex_);
    auto hole = free_
                    .emplace(static_cast<std::byte*>(block) - static_cast<std::byte*>(device_),
                             size.count())
                    .first;
    if (const auto next = std::next(hole);
        next != free_.end() && hole->first + hole->second == next->first) {
      hole->second += next->second;
      free_.erase(next);
    }
    if (hole == free_.begin()) return;
    if (const auto previous = std::prev(hole); previous->first + previous->second == hole->first) {
      previous->second += hole->second;
      free_.erase(hole);
    }
  }

  std::ptrdiff_t native_offset() const override {
    return static_cast<std::byte*>(backing_) - static_cast<std::byte*>(device_);
  }

 private:
  [[noreturn]] void fail(int file) const {
    if (file >= 0) close(file);
    throw OutOfMemoryError(
        concat("device 'cpu:sim' cannot map ", capacity_, "; give a smaller capacity"));
  }

  Bytes capacity_;
  void* backing_ = nullptr;
  void* device_ = nullptr;
  std::mutex mutex_;
  std::map<std::int64_t, std::int64_t> free_;  ///< length by offset
};

}  // namespace

std::unique_ptr<CpuMemory> make_simulated_memory(Bytes capacity) {
  return std::make_unique<SimulatedMemory>(capacity);
}

}  // namespace zero3::cpu
