#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace zero3 {

/// Of a file: which bytes go where.
struct DiskTransfer {
  enum class Kind : std::uint8_t { kRead, kWrite };
  Kind kind = Kind::kRead;
  std::byte* data = nullptr;
  std::int64_t bytes = 0, offset = 0;
};

/// Reads and writes of one file that are under way at the same time, one in each slot. One thread
/// uses it; the file outlives it.
class DiskQueue {
 public:
  /// Waits for all that is under way.
  virtual ~DiskQueue() = default;
  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;

  /// Returns at once, but where the slot's last transfer was not finished: waits for that one,
  /// whose result is dropped. The data stays the queue's until finish().
  virtual void start(std::int64_t slot, const DiskTransfer& transfer) = 0;
  /// Waits for the slot's transfer, where there is one. Returns 0 when all its bytes have moved,
  /// else what errno says.
  [[nodiscard]] virtual int finish(std::int64_t slot) = 0;
  /// "io_uring", "threads".
  [[nodiscard]] virtual std::string_view name() const = 0;

 protected:
  DiskQueue() = default;
};

/// By io_uring; null where zero3 was built without liburing, and where the system refuses it, as
/// containers do. `descriptor` is the file's.
[[nodiscard]] std::unique_ptr<DiskQueue> make_disk_ring(int descriptor, std::int64_t slots);
/// By pread and pwrite on a thread for each slot.
[[nodiscard]] std::unique_ptr<DiskQueue> make_disk_threads(int descriptor, std::int64_t slots);
/// The first of them that there is.
[[nodiscard]] std::unique_ptr<DiskQueue> make_disk_queue(int descriptor, std::int64_t slots);

}  // namespace zero3
