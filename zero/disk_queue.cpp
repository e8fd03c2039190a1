#include "disk_queue.h"

#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace zero3 {
namespace {

/// 0, or what errno says.
int transfer_all(int descriptor, const DiskTransfer& transfer) {
  for (std::int64_t done = 0; done < transfer.bytes;) {
    std::byte* data = transfer.data + done;
    const auto bytes = static_cast<std::size_t>(transfer.bytes - done);
    const ssize_t moved = transfer.kind == DiskTransfer::Kind::kWrite
                              ? pwrite(descriptor, data, bytes, transfer.offset + done)
                              : pread(descriptor, data, bytes, transfer.offset + done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return EIO;
    done += moved;
  }
  return 0;
}

/// A thread and the one transfer that it is given at a time.
class DiskThread {
 public:
  explicit DiskThread(int descriptor) : descriptor_(descriptor), thread_([this] { run(); }) {}
  ~DiskThread() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  DiskThread(const DiskThread&) = delete;
  DiskThread& operator=(const DiskThread&) = delete;

  void start(const DiskTransfer& transfer) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !busy_; });
    transfer_ = transfer;
    busy_ = true;
    changed_.notify_all();
  }
  int finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !busy_; });
    return error_;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return busy_ || ended_; });
      if (!busy_) return;
      const DiskTransfer transfer = transfer_;
      lock.unlock();
      const int error = transfer_all(descriptor_, transfer);
      lock.lock();
      error_ = error;
      busy_ = false;
      changed_.notify_all();
    }
  }

  int descriptor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  DiskTransfer transfer_;
  bool busy_ = false, ended_ = false;
  int error_ = 0;
  std::thread thread_;
};

class DiskThreads final : public DiskQueue {
 public:
  DiskThreads(int descriptor, std::int64_t slots) {
    for (std::int64_t i = 0; i < slots; ++i) threads_.emplace_back(descriptor);
  }
  void start(std::int64_t slot, const DiskTransfer& transfer) override {
    threads_[static_cast<std::size_t>(slot)].start(transfer);
  }
  int finish(std::int64_t slot) override {
    return threads_[static_cast<std::size_t>(slot)].finish();
  }
  [[nodiscard]] std::string_view name() const override { return "threads"; }

 private:
  std::deque<DiskThread> threads_;
};

}  // namespace

std::unique_ptr<DiskQueue> make_disk_threads(int descriptor, std::int64_t slots) {
  return std::make_unique<DiskThreads>(descriptor, slots);
}

std::unique_ptr<DiskQueue> make_disk_queue(int descriptor, std::int64_t slots) {
  std::unique_ptr<DiskQueue> ring = make_disk_ring(descriptor, slots);
  return ring ? std::move(ring) : make_disk_threads(descriptor, slots);
}

}  // namespace zero3
