#include "disk_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/offload_faults.h"
#include "support/temp_dir.h"

namespace zero3::test {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::int64_t kSlots = 3, kSize = 100003;

Bytes pattern(std::int64_t first) {
  Bytes bytes(kSize);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((static_cast<std::size_t>(first) + i * 7) & 0xffU);
  return bytes;
}

DiskTransfer write_of(Bytes& bytes, std::int64_t offset) {
  return {DiskTransfer::Kind::kWrite, bytes.data(), static_cast<std::int64_t>(bytes.size()),
          offset};
}

DiskTransfer read_of(Bytes& bytes, std::int64_t offset) {
  return {DiskTransfer::Kind::kRead, bytes.data(), static_cast<std::int64_t>(bytes.size()), offset};
}

class DiskQueues : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    file_ = open((dir_.path() / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(file_, 0);
    queue_ = make();
    if (queue_ == nullptr) GTEST_SKIP() << "no io_uring: built without it, or the system refuses";
  }
  void TearDown() override {
    queue_.reset();
    close(file_);
  }
  [[nodiscard]] std::unique_ptr<DiskQueue> make() const {
    return GetParam() ? make_disk_ring(file_, kSlots) : make_disk_threads(file_, kSlots);
  }

  TempDir dir_;
  int file_ = -1;
  std::unique_ptr<DiskQueue> queue_;
};

TEST_P(DiskQueues, AllSlotsMoveAtOnceAndFinishInAnyOrder) {
  std::vector<Bytes> written, read(kSlots, Bytes(kSize));
  for (std::int64_t i = 0; i < kSlots; ++i) written.push_back(pattern(i));
  for (std::int64_t i = 0; i < kSlots; ++i)
    queue_->start(i, write_of(written[static_cast<std::size_t>(i)], i * kSize));
  for (std::int64_t i = kSlots; i-- > 0;) EXPECT_EQ(queue_->finish(i), 0);
  for (std::int64_t i = 0; i < kSlots; ++i)
    queue_->start(i, read_of(read[static_cast<std::size_t>(i)], i * kSize));
  for (const std::int64_t i : {1, 2, 0}) EXPECT_EQ(queue_->finish(i), 0);
  EXPECT_EQ(read, written);
}

TEST_P(DiskQueues, AStartWaitsForWhatItsSlotIsAt) {
  // Were it not waited for, the first of two writes to one place could be the last to land.
  Bytes first = pattern(1), second = pattern(2), got(kSize);
  for (int round = 0; round < 200; ++round) {
    queue_->start(0, write_of(first, 0));
    queue_->start(0, write_of(second, 0));
    ASSERT_EQ(queue_->finish(0), 0);
    queue_->start(1, read_of(got, 0));
    ASSERT_EQ(queue_->finish(1), 0);
    ASSERT_EQ(got, second) << "round " << round;
  }
}

TEST_P(DiskQueues, TheEndWaitsForWhatIsUnderWay) {
  Bytes bytes = pattern(4);
  for (int round = 0; round < 50; ++round) {
    ASSERT_EQ(ftruncate(file_, 0), 0);
    queue_->start(round % kSlots, write_of(bytes, 0));
    queue_ = make();
    ASSERT_NE(queue_, nullptr);
    ASSERT_EQ(lseek(file_, 0, SEEK_END), kSize) << "round " << round;
  }
}

TEST_P(DiskQueues, AFailureIsThatOfItsSlotAlone) {
  Bytes bytes = pattern(3), beyond(kSize), got(kSize);
  queue_->start(0, write_of(bytes, 0));
  ASSERT_EQ(queue_->finish(0), 0);
  queue_->start(0, read_of(beyond, 10 * kSize));
  queue_->start(1, read_of(got, 0));
  EXPECT_EQ(queue_->finish(0), EIO) << "there is nothing to read there";
  EXPECT_EQ(queue_->finish(1), 0);
  EXPECT_EQ(got, bytes);
  {
    const LargestFile limit(kSize);
    queue_->start(2, write_of(bytes, kSize));
    EXPECT_EQ(queue_->finish(2), EFBIG);
  }
  queue_->start(2, write_of(bytes, kSize));
  EXPECT_EQ(queue_->finish(2), 0);
}

TEST_P(DiskQueues, WhatFitsMovesBeforeTheErrorIsTold) {
  // A write that meets the limit writes what fits before it fails.
  Bytes bytes = pattern(6);
  {
    const LargestFile limit(kSize / 2);
    queue_->start(0, write_of(bytes, 0));
    EXPECT_EQ(queue_->finish(0), EFBIG);
  }
  EXPECT_EQ(lseek(file_, 0, SEEK_END), kSize / 2);
  // A read that meets the end of the file as well.
  Bytes got(kSize);
  queue_->start(1, read_of(got, 0));
  EXPECT_EQ(queue_->finish(1), EIO);
  for (std::size_t i = 0; i < kSize / 2; ++i) ASSERT_EQ(got[i], bytes[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(By, DiskQueues, testing::Values(true, false), [](const auto& test) {
  return std::string(test.param ? "io_uring" : "threads");
});

/// On this thread, for good: what containers' profiles do.
bool refuse_io_uring() {
  std::array<sock_filter, 4> rules = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  sock_fprog program = {static_cast<unsigned short>(rules.size()), rules.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(DiskQueue, IsOfThreadsWhereTheSystemRefusesIoUring) {
  const TempDir dir;
  const int file = open((dir.path() / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  Bytes bytes = pattern(5), got(kSize);
  bool refused = false;
  std::thread([&] {
    refused = refuse_io_uring();
    if (!refused) return;
    const std::unique_ptr<DiskQueue> queue = make_disk_queue(file, kSlots);
    EXPECT_EQ(queue->name(), "threads");
    queue->start(0, write_of(bytes, 0));
    EXPECT_EQ(queue->finish(0), 0);
    queue->start(0, read_of(got, 0));
    EXPECT_EQ(queue->finish(0), 0);
  }).join();
  close(file);
  if (!refused) GTEST_SKIP() << "this system lets no filter be set";
  EXPECT_EQ(got, bytes);
}

}  // namespace
}  // namespace zero3::test
