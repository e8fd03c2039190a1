#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include <zero3/memory.h>
#include <zero3/stream.h>
#include <zero3/units.h>

namespace zero3 {

/// Counts what is in use, by tag, at the moments of the calls: the figures follow the host
/// program's order and not the device's timing.
class StatsResource final : public MemoryResource {
 public:
  explicit StatsResource(MemoryResource& upstream) : upstream_(upstream) {}

  [[nodiscard]] void* allocate(Bytes size, MemoryTag tag, Stream& stream) override;
  void deallocate(void* block, Bytes size, MemoryTag tag, Stream& stream) noexcept override;

  [[nodiscard]] MemoryByTag in_use() const;
  /// Each tag's own high-water mark.
  [[nodiscard]] MemoryByTag peak() const;
  /// The high-water mark of all tags together.
  [[nodiscard]] Bytes peak_total() const;
  /// Calls of allocate() so far.
  [[nodiscard]] std::int64_t allocations() const;
  void reset_peak();

 private:
  MemoryResource& upstream_;
  mutable std::mutex mutex_;
  MemoryByTag in_use_, peak_;
  Bytes peak_total_;
  std::int64_t allocations_ = 0;
};

/// Refuses what would bring the bytes in use above `limit`; the error says what each tag holds.
class LimitResource final : public MemoryResource {
 public:
  LimitResource(MemoryResource& upstream, Bytes limit) : upstream_(upstream), limit_(limit) {}

  [[nodiscard]] void* allocate(Bytes size, MemoryTag tag, Stream& stream) override;
  void deallocate(void* block, Bytes size, MemoryTag tag, Stream& stream) noexcept override;
  [[nodiscard]] Bytes limit() const { return limit_; }
  /// Takes effect with the next allocation.
  void set_limit(Bytes limit);

 private:
  MemoryResource& upstream_;
  mutable std::mutex mutex_;
  Bytes limit_;
  MemoryByTag in_use_;
};

/// Raw memory of a device, in no order: the bottom of every stack of resources. Thread-safe.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  BlockSource(const BlockSource&) = delete;
  BlockSource& operator=(const BlockSource&) = delete;
  /// Throws OutOfMemoryError.
  [[nodiscard]] virtual void* take(Bytes size) = 0;
  virtual void give(void* block, Bytes size) noexcept = 0;

 protected:
  BlockSource() = default;
};

/// Keeps returned blocks, by exact size, and hands them out again: on the same stream at once, on
/// another stream after it has been made to wait for the point of return. `trim` and the destructor
/// wait for those points and give every kept block back to the source; an allocation that the
/// source cannot serve trims first.
class PoolResource final : public MemoryResource {
 public:
  explicit PoolResource(BlockSource& source) : source_(source) {}
  PoolResource(const PoolResource&) = delete;
  PoolResource& operator=(const PoolResource&) = delete;
  ~PoolResource() override;

  [[nodiscard]] void* allocate(Bytes size, MemoryTag tag, Stream& stream) override;
  void deallocate(void* block, Bytes size, MemoryTag tag, Stream& stream) noexcept override;
  /// Bytes taken from the source and not given back: in use or kept.
  [[nodiscard]] Bytes reserved() const;
  /// Blocks taken from the source so far; constant once a program has reached its steady state.
  [[nodiscard]] std::int64_t blocks_taken() const;
  void trim() noexcept;

 private:
  struct Kept {
    void* block;
    std::uint64_t stream_id;
    Event returned;
  };
  [[nodiscard]] std::optional<Kept> take_kept(Bytes size, std::uint64_t stream_id);
  [[nodiscard]] void* take_fresh(Bytes size, MemoryTag tag);
  void keep(Bytes size, Kept kept);
  void give_back(Bytes size, Kept kept) noexcept;

  BlockSource& source_;
  mutable std::mutex mutex_;
  std::map<std::int64_t, std::vector<Kept>> kept_;
  Bytes reserved_;
  std::int64_t blocks_taken_ = 0;
};

}  // namespace zero3
