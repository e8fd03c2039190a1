#include <liburing.h>

#include <cerrno>
#include <vector>

#include "disk_queue.h"

namespace zero3 {
namespace {

class DiskRing final : public DiskQueue {
 public:
  /// `ring` is the queue's from now on.
  DiskRing(const io_uring& ring, int descriptor, std::int64_t slots)
      : ring_(ring), descriptor_(descriptor), slots_(static_cast<std::size_t>(slots)) {}
  ~DiskRing() override {
    for (std::size_t i = 0; i < slots_.size(); ++i) wait_for(slots_[i]);
    io_uring_queue_exit(&ring_);
  }
  DiskRing(const DiskRing&) = delete;
  DiskRing& operator=(const DiskRing&) = delete;

  void start(std::int64_t slot, const DiskTransfer& transfer) override {
    Slot& s = slots_[static_cast<std::size_t>(slot)];
    wait_for(s);
    s = {.left = transfer};
    go_on(s);
  }
  int finish(std::int64_t slot) override {
    Slot& s = slots_[static_cast<std::size_t>(slot)];
    wait_for(s);
    return s.error;
  }
  [[nodiscard]] std::string_view name() const override { return "io_uring"; }

 private:
  struct Slot {
    DiskTransfer left = {};
    bool under_way = false;
    int error = 0;
  };

  void wait_for(const Slot& slot) {
    while (slot.under_way) reap();
  }

  /// Hands what is left of a transfer to the system.
  void go_on(Slot& slot) {
    if (broken_ != 0) {
      slot.error = broken_;
      return;
    }
    const DiskTransfer& t = slot.left;
    const auto bytes = static_cast<unsigned>(t.bytes);
    const auto offset = static_cast<std::uint64_t>(t.offset);
    // There is one for every slot.
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (t.kind == DiskTransfer::Kind::kWrite)
      io_uring_prep_write(entry, descriptor_, t.data, bytes, offset);
    else
      io_uring_prep_read(entry, descriptor_, t.data, bytes, offset);
    io_uring_sqe_set_data(entry, &slot);
    int submitted = 0;
    do {
      submitted = io_uring_submit(&ring_);
    } while (submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY);
    if (submitted < 0) {
      // The entry is still there, so that nothing may be submitted after it.
      slot.error = broken_ = -submitted;
      return;
    }
    slot.under_way = true;
  }

  /// Waits for one completion, of whichever slot.
  void reap() {
    io_uring_cqe* completion = nullptr;
    int waited = 0;
    do {
      waited = io_uring_wait_cqe(&ring_, &completion);
    } while (waited == -EINTR || waited == -EAGAIN);
    if (waited < 0) {
      for (Slot& slot : slots_) {
        if (slot.under_way) slot.error = -waited;
        slot.under_way = false;
      }
      broken_ = -waited;
      return;
    }
    auto& slot = *static_cast<Slot*>(io_uring_cqe_get_data(completion));
    const std::int64_t moved = completion->res;
    io_uring_cqe_seen(&ring_, completion);
    slot.under_way = false;
    if (moved == -EINTR || moved == -EAGAIN) {
      go_on(slot);
    } else if (moved <= 0) {
      slot.error = moved == 0 ? EIO : static_cast<int>(-moved);
    } else {
      slot.left.data += moved;
      slot.left.offset += moved;
      slot.left.bytes -= moved;
      if (slot.left.bytes > 0) go_on(slot);
    }
  }

  io_uring ring_;
  int descriptor_;
  std::vector<Slot> slots_;
  int broken_ = 0;
};

}  // namespace

std::unique_ptr<DiskQueue> make_disk_ring(int descriptor, std::int64_t slots) {
  io_uring ring = {};
  if (io_uring_queue_init(static_cast<unsigned>(slots), &ring, 0) < 0) return nullptr;
  // Of Linux 5.6, as plain reads and writes are; before it there is a ring, and they fail.
  if ((ring.features & IORING_FEAT_RW_CUR_POS) == 0) {
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  return std::make_unique<DiskRing>(ring, descriptor, slots);
}

}  // namespace zero3
