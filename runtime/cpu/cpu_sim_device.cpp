#include <sys/mman.h>

#include <zero3/error.h>
#include "cpu/cpu_device.h"
#include "cpu/memory_file.h"

namespace zero3::cpu {
namespace {

/// A simulated accelerator's memory: a file in memory, mapped for tasks, behind a range of
/// addresses of its own that nobody can touch. Buffers have the latter, so a host access outside of
/// a stream faults at once, at any time.
class SimulatedMemory final : public CpuMemory {
 public:
  explicit SimulatedMemory(Bytes capacity) : file_("device 'cpu:sim'", capacity) {
    device_ = mmap(nullptr, static_cast<std::size_t>(file_.capacity().count()), PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (device_ == MAP_FAILED) {
      throw OutOfMemoryError(
          concat("device 'cpu:sim' cannot map ", file_.capacity(), "; give a smaller capacity"));
    }
  }
  SimulatedMemory(const SimulatedMemory&) = delete;
  SimulatedMemory& operator=(const SimulatedMemory&) = delete;
  ~SimulatedMemory() override {
    munmap(device_, static_cast<std::size_t>(file_.capacity().count()));
  }

  void* take(Bytes size) override { return static_cast<std::byte*>(device_) + file_.take(size); }
  void give(void* block, Bytes size) noexcept override {
    file_.give(static_cast<std::byte*>(block) - static_cast<std::byte*>(device_), size);
  }
  std::ptrdiff_t native_offset() const override {
    return file_.data() - static_cast<std::byte*>(device_);
  }

 private:
  MemoryFile file_;
  void* device_ = nullptr;
};

}  // namespace

std::unique_ptr<CpuMemory> make_simulated_memory(Bytes capacity) {
  ZERO3_CHECK(capacity.count() > 0, "device 'cpu:sim' of ", capacity, "; give it a capacity");
  return std::make_unique<SimulatedMemory>(capacity);
}

}  // namespace zero3::cpu
