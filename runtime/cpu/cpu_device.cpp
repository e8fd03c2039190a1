#include "cpu/cpu_device.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "cpu/cpu_stream.h"
#include "cpu/memory_file.h"

namespace zero3 {
namespace cpu {
namespace {

class HostMemory final : public CpuMemory {
 public:
  void* take(Bytes size) override {
    void* block = std::aligned_alloc(kAlignment, static_cast<std::size_t>(size.count()));
    if (block == nullptr)
      throw OutOfMemoryError(concat("the system has no ", size, " for a block of host memory"));
    return block;
  }
  void give(void* block, Bytes) noexcept override { std::free(block); }
  std::ptrdiff_t native_offset() const override { return 0; }
};

class SharedMemory final : public CpuMemory {
 public:
  SharedMemory() : file_("device 'cpu'", physical_memory()) {}
  void* take(Bytes size) override { return file_.data() + file_.take(size); }
  void give(void* block, Bytes size) noexcept override {
    file_.give(static_cast<std::byte*>(block) - file_.data(), size);
  }
  std::ptrdiff_t native_offset() const override { return 0; }

 private:
  static Bytes physical_memory() {
    return Bytes(std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
  }
  MemoryFile file_;
};

std::unique_ptr<CpuMemory> make_memory(const DeviceOptions& options) {
  if (options.kind == DeviceKind::kCpuSim) return make_simulated_memory(options.capacity);
  return options.shared ? make_shared_memory() : make_host_memory();
}

/// Fills blocks with NaN patterns, in stream order, when they are handed out and when they return.
class PoisonResource final : public MemoryResource {
 public:
  PoisonResource(MemoryResource& upstream, std::ptrdiff_t native_offset)
      : upstream_(upstream), native_offset_(native_offset) {}

  void* allocate(Bytes size, MemoryTag tag, Stream& stream) override {
    void* block = upstream_.allocate(size, tag, stream);
    try {
      poison(block, size, stream);
    } catch (...) {
      upstream_.deallocate(block, size, tag, stream);
      throw;
    }
    return block;
  }
  void deallocate(void* block, Bytes size, MemoryTag tag, Stream& stream) noexcept override {
    try {
      poison(block, size, stream);
    } catch (...) {
      // Without memory for one more task the block returns with its last contents.
    }
    upstream_.deallocate(block, size, tag, stream);
  }

 private:
  void poison(void* block, Bytes size, Stream& stream) const {
    if (block == nullptr) return;
    void* data = static_cast<std::byte*>(block) + native_offset_;
    const auto bytes = static_cast<std::size_t>(size.count());
    internal::enqueue(stream, {.name = "poison",
                               .run = [data, bytes] { std::memset(data, 0xff, bytes); },
                               .silent = true});
  }

  MemoryResource& upstream_;
  std::ptrdiff_t native_offset_;
};

}  // namespace

std::unique_ptr<CpuMemory> make_host_memory() {
  return std::make_unique<HostMemory>();
}

std::unique_ptr<CpuMemory> make_shared_memory() {
  return std::make_unique<SharedMemory>();
}

CpuDevice::CpuDevice(const DeviceOptions& options, internal::Executor& executor,
                     std::unique_ptr<internal::Executor> owned_executor)
    : options_(options),
      threads_(options.threads > 0 ? options.threads : available_cores()),
      owned_executor_(std::move(owned_executor)),
      executor_(executor),
      memory_(make_memory(options)),
      pool_(*memory_),
      poison_(options.poison ? std::make_unique<PoisonResource>(pool_, memory_->native_offset())
                             : nullptr),
      limit_(poison_ ? *poison_ : static_cast<MemoryResource&>(pool_), options.memory_limit),
      stats_(limit_) {
  ZERO3_CHECK(options.threads >= 0, "a device with ", options.threads,
              " threads; give 1 or more, or 0 for all cores");
}

CpuDevice::~CpuDevice() = default;

std::unique_ptr<Stream> CpuDevice::make_stream(StreamOptions options) {
  return std::make_unique<CpuStream>(*this, executor_, std::move(options), next_stream_id_++);
}

std::unique_ptr<Device> make_device_with_threads(const DeviceOptions& options) {
  auto executor = internal::make_threaded_executor();
  internal::Executor& reference = *executor;
  return std::make_unique<CpuDevice>(options, reference, std::move(executor));
}

}  // namespace cpu

std::unique_ptr<Device> internal::make_cpu_device(const DeviceOptions& options,
                                                  Executor& executor) {
  ZERO3_CHECK(options.kind != DeviceKind::kCuda, "a CPU executor cannot run device '",
              name_of(options.kind), "'");
  return std::make_unique<cpu::CpuDevice>(options, executor);
}

}  // namespace zero3
