#pragma once

#include <atomic>
#include <memory>

#include <zero3/device.h>
#include <zero3/internal/cpu_stream.h>

namespace zero3::cpu {

/// A CPU device that owns a threaded executor.
[[nodiscard]] std::unique_ptr<Device> make_device_with_threads(const DeviceOptions& options);

/// What "cpu" and "cpu:sim" differ in: where blocks come from, and where tasks find them.
class CpuMemory : public BlockSource {
 public:
  /// Added to a view's address by native_data().
  [[nodiscard]] virtual std::ptrdiff_t native_offset() const = 0;
};
[[nodiscard]] std::unique_ptr<CpuMemory> make_host_memory();
/// Host memory that other processes can map.
[[nodiscard]] std::unique_ptr<CpuMemory> make_shared_memory();
[[nodiscard]] std::unique_ptr<CpuMemory> make_simulated_memory(Bytes capacity);

class CpuDevice final : public Device {
 public:
  CpuDevice(const DeviceOptions& options, internal::Executor& executor,
            std::unique_ptr<internal::Executor> owned_executor = nullptr);
  CpuDevice(const CpuDevice&) = delete;
  CpuDevice& operator=(const CpuDevice&) = delete;
  ~CpuDevice() override;

  [[nodiscard]] DeviceKind kind() const override { return options_.kind; }
  [[nodiscard]] int ordinal() const override { return options_.ordinal; }
  [[nodiscard]] int threads() const override { return threads_; }
  [[nodiscard]] std::unique_ptr<Stream> make_stream(StreamOptions options) override;
  [[nodiscard]] MemoryResource& memory() override { return stats_; }
  [[nodiscard]] StatsResource& stats() override { return stats_; }
  [[nodiscard]] LimitResource& limit() override { return limit_; }
  [[nodiscard]] PoolResource& pool() override { return pool_; }
  [[nodiscard]] BlockTable& blocks() override { return blocks_; }

  [[nodiscard]] std::ptrdiff_t native_offset() const { return memory_->native_offset(); }
  [[nodiscard]] Bytes host_link() const {
    return host_accessible() ? Bytes(0) : options_.host_link;
  }
  [[nodiscard]] Trace* trace() const { return options_.trace; }
  [[nodiscard]] int rank() const { return options_.rank; }

 private:
  DeviceOptions options_;
  int threads_;
  std::unique_ptr<internal::Executor> owned_executor_;
  internal::Executor& executor_;
  std::atomic<std::uint64_t> next_stream_id_ = 1;
  std::unique_ptr<CpuMemory> memory_;
  PoolResource pool_;
  std::unique_ptr<MemoryResource> poison_;
  LimitResource limit_;
  StatsResource stats_;
  BlockTable blocks_;
};

}  // namespace zero3::cpu
