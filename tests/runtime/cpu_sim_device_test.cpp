#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include <zero3/buffer.h>
#include <zero3/copy.h>
#include <zero3/internal/cpu_stream.h>
#include "support/contains.h"
#include "support/thrown.h"

namespace zero3 {
namespace {

using test::contains;
using test::thrown;

constexpr std::int64_t kCapacity = 4096;

class CpuSimDevice : public ::testing::Test {
 protected:
  Buffer take(std::int64_t bytes) {
    return Buffer(Elements(bytes), DType::kU8, MemoryTag::kWorkspace, *stream_);
  }

  std::unique_ptr<Device> device_ =
      make_device({.kind = DeviceKind::kCpuSim, .threads = 1, .capacity = Bytes(kCapacity)});
  std::unique_ptr<Stream> stream_ = device_->make_stream({.name = "sim"});
};

TEST_F(CpuSimDevice, IsNotHostAccessible) {
  EXPECT_EQ(device_->kind(), DeviceKind::kCpuSim);
  EXPECT_FALSE(device_->host_accessible());
}

using CpuSimDeviceDeathTest = CpuSimDevice;

TEST_F(CpuSimDeviceDeathTest, FaultsWhenTheHostReadsItsMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Buffer buffer = take(64);
  fill_zero(buffer.view(), *stream_);
  stream_->synchronize();
  const auto* data = static_cast<volatile const std::uint8_t*>(buffer.view().data());
  // Sanitizers turn the signal into a report and an exit status.
  EXPECT_DEATH(static_cast<void>(data[0]), "");
}

TEST_F(CpuSimDeviceDeathTest, FaultsWhenTheHostWritesItsMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Buffer buffer = take(64);
  auto* data = static_cast<volatile std::uint8_t*>(buffer.view().data());
  EXPECT_DEATH(data[63] = 1, "");
}

TEST_F(CpuSimDevice, RefusesASpan) {
  const Buffer buffer = take(64);
  EXPECT_TRUE(contains(
      thrown<UsageError>([&] { static_cast<void>(buffer.view().host_span<std::uint8_t>()); }),
      {"cpu:sim", "copy_to_host"}));
}

TEST_F(CpuSimDevice, LetsItsOperationsTouchItsMemory) {
  const Buffer buffer(Elements(16), DType::kI32, MemoryTag::kWorkspace, *stream_);
  auto* data = internal::native<std::int32_t>(buffer.view());
  EXPECT_NE(static_cast<void*>(data), buffer.view().data());
  stream_->call("write", [data] { data[15] = 7; });
  std::int32_t read = 0;
  copy_to_host(&read, buffer.view().slice(15, 1), *stream_);
  stream_->synchronize();
  EXPECT_EQ(read, 7);
}

TEST_F(CpuSimDevice, HoldsItsCapacityAndNoMore) {
  const Buffer most = take(kCapacity - 64);
  const Buffer rest = take(64);
  EXPECT_TRUE(contains(thrown<OutOfMemoryError>([&] { take(1); }),
                       {"device 'cpu:sim' of 4.0 KiB", "64 bytes"}));
}

TEST_F(CpuSimDevice, RoundsItsCapacityUp) {
  const auto small =
      make_device({.kind = DeviceKind::kCpuSim, .threads = 1, .capacity = Bytes(65)});
  const auto stream = small->make_stream({});
  EXPECT_NO_THROW(Buffer(Elements(128), DType::kU8, MemoryTag::kWorkspace, *stream));
}

TEST_F(CpuSimDevice, MergesHolesWhateverTheOrderOfReturn) {
  std::array<std::size_t, 4> order = {0, 1, 2, 3};
  do {
    std::array<Buffer, 4> parts;
    for (Buffer& part : parts) part = take(kCapacity / 4);
    for (const std::size_t i : order) {
      parts[i].reset();
      device_->pool().trim();
    }
    ASSERT_NO_THROW(take(kCapacity)) << order[0] << order[1] << order[2] << order[3];
    device_->pool().trim();
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(CpuSimDevice, DoesNotMergeAcrossABlockInUse) {
  std::array<Buffer, 4> parts;
  for (Buffer& part : parts) part = take(kCapacity / 4);
  parts[0].reset();
  parts[2].reset();
  EXPECT_THROW(take(kCapacity / 2), OutOfMemoryError);
  parts[1].reset();
  EXPECT_NO_THROW(take(3 * kCapacity / 4));
}

TEST_F(CpuSimDevice, KeepsNeighbouringBlocksApart) {
  const Buffer first = take(64);
  const Buffer second = take(64);
  const std::vector<std::uint8_t> ones(64, 1);
  const std::vector<std::uint8_t> twos(64, 2);
  copy_from_host(first.view(), ones.data(), *stream_);
  copy_from_host(second.view(), twos.data(), *stream_);
  std::vector<std::uint8_t> back(64);
  copy_to_host(back.data(), first.view(), *stream_);
  stream_->synchronize();
  EXPECT_EQ(back, ones);
}

TEST_F(CpuSimDevice, NeedsACapacity) {
  for (const std::int64_t bytes : {0, -1}) {
    EXPECT_TRUE(contains(
        thrown<UsageError>([&] {
          static_cast<void>(make_device({.kind = DeviceKind::kCpuSim, .capacity = Bytes(bytes)}));
        }),
        {"'cpu:sim'", concat(bytes, " bytes")}));
  }
}

TEST_F(CpuSimDevice, SaysWhenItCannotBeMapped) {
  EXPECT_TRUE(contains(thrown<OutOfMemoryError>([] {
                         static_cast<void>(make_device({.kind = DeviceKind::kCpuSim,
                                                        .capacity = Bytes(std::int64_t{1} << 60)}));
                       }),
                       {"cannot map 1024.0 PiB", "smaller capacity"}));
}

TEST_F(CpuSimDevice, LivesBesideOthersOfItsKind) {
  const auto other =
      make_device({.kind = DeviceKind::kCpuSim, .threads = 1, .capacity = Bytes(kCapacity)});
  const auto stream = other->make_stream({});
  const Buffer here = take(kCapacity);
  const Buffer there(Elements(kCapacity), DType::kU8, MemoryTag::kWorkspace, *stream);
  EXPECT_NE(here.view().data(), there.view().data());
}

}  // namespace
}  // namespace zero3
