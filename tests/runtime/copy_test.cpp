#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include <zero3/buffer.h>
#include <zero3/copy.h>
#include "support/contains.h"
#include "support/executors.h"
#include "support/thrown.h"

namespace zero3 {
namespace {

using test::contains;
using test::Mode;
using test::OwnDevice;
using test::thrown;

struct CopyCase {
  DeviceKind kind;
  Mode mode;
};

class CopyTest : public ::testing::TestWithParam<CopyCase> {
 protected:
  Buffer make(std::int64_t count, DType dtype = DType::kI32) {
    return Buffer(Elements(count), dtype, MemoryTag::kWorkspace, *stream_);
  }
  Buffer upload(const std::vector<std::int32_t>& values) {
    Buffer buffer = make(static_cast<std::int64_t>(values.size()));
    copy_from_host(buffer.view(), values.data(), *stream_);
    stream_->synchronize();
    return buffer;
  }
  std::vector<std::int32_t> download(const TensorView& view) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(view.count()));
    copy_to_host(values.data(), view, *stream_);
    stream_->synchronize();
    return values;
  }

  OwnDevice own_{
      GetParam().mode,
      {.kind = GetParam().kind, .threads = 1, .capacity = Bytes(1 << 20), .poison = true}};
  std::unique_ptr<Stream> stream_ = own_.stream("copies");
};
INSTANTIATE_TEST_SUITE_P(
    Devices, CopyTest,
    ::testing::Values(CopyCase{DeviceKind::kCpu, Mode{}}, CopyCase{DeviceKind::kCpu, Mode{1}},
                      CopyCase{DeviceKind::kCpuSim, Mode{}},
                      CopyCase{DeviceKind::kCpuSim, Mode{0}}),
    [](const auto& tested) {
      return concat(tested.param.kind == DeviceKind::kCpu ? "cpu_" : "cpu_sim_", tested.param.mode);
    });

std::vector<std::int32_t> ascending(std::int64_t count) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 1);
  return values;
}

TEST_P(CopyTest, GoesToTheDeviceAndBack) {
  for (const std::int64_t count : {0, 1, 15, 16, 17, 1009}) {
    const auto values = ascending(count);
    EXPECT_EQ(download(upload(values).view()), values) << count;
  }
}

TEST_P(CopyTest, GoesFromBufferToBuffer) {
  for (const std::int64_t count : {0, 1, 15, 16, 17, 1009}) {
    const auto values = ascending(count);
    const Buffer source = upload(values);
    const Buffer target = make(count);
    copy(target.view(), source.view(), *stream_);
    EXPECT_EQ(download(target.view()), values) << count;
  }
}

TEST_P(CopyTest, TouchesItsPartAlone) {
  const Buffer source = upload(ascending(8));
  const Buffer target = upload(std::vector<std::int32_t>(8, 0));
  copy(target.view().slice(3, 2), source.view().slice(6, 2), *stream_);
  EXPECT_EQ(download(target.view()), (std::vector<std::int32_t>{0, 0, 0, 7, 8, 0, 0, 0}));
}

TEST_P(CopyTest, MayGoToTheNeighbouringPartOfOneBuffer) {
  const Buffer buffer = upload(ascending(6));
  copy(buffer.view().slice(3, 3), buffer.view().slice(0, 3), *stream_);
  EXPECT_EQ(download(buffer.view()), (std::vector<std::int32_t>{1, 2, 3, 1, 2, 3}));
}

TEST_P(CopyTest, RefusesOverlap) {
  const Buffer buffer = upload(ascending(6));
  EXPECT_THROW(copy(buffer.view().slice(2, 3), buffer.view().slice(0, 3), *stream_), UsageError);
  EXPECT_THROW(copy(buffer.view(), buffer.view(), *stream_), UsageError);
}

TEST_P(CopyTest, RefusesAnotherSizeOrType) {
  const Buffer source = upload(ascending(4));
  const Buffer shorter = make(3);
  const Buffer floats = make(4, DType::kF32);
  EXPECT_TRUE(contains(thrown<UsageError>([&] { copy(shorter.view(), source.view(), *stream_); }),
                       {"copy of 4 int32 elements to 3 int32 elements"}));
  EXPECT_TRUE(contains(thrown<UsageError>([&] { copy(floats.view(), source.view(), *stream_); }),
                       {"copy of 4 int32 elements to 4 fp32 elements"}));
}

TEST_P(CopyTest, RefusesNullOnTheHost) {
  const Buffer buffer = make(4);
  EXPECT_THROW(copy_from_host(buffer.view(), nullptr, *stream_), UsageError);
  EXPECT_THROW(copy_to_host(nullptr, buffer.view(), *stream_), UsageError);
}

TEST_P(CopyTest, FillsWithZeros) {
  const Buffer buffer = upload(ascending(5));
  fill_zero(buffer.view().slice(1, 3), *stream_);
  EXPECT_EQ(download(buffer.view()), (std::vector<std::int32_t>{1, 0, 0, 0, 5}));
}

TEST_P(CopyTest, OfNothingIsNothing) {
  fill_zero(TensorView(), *stream_);
  copy(TensorView(), TensorView(), *stream_);
  copy_from_host(TensorView(), nullptr, *stream_);
  copy_to_host(nullptr, TensorView(), *stream_);
  EXPECT_NO_THROW(stream_->synchronize());
}

TEST_P(CopyTest, WaitsForItsTurnInTheStream) {
  std::vector<std::int32_t> host(4, 1);
  const Buffer buffer = upload(host);
  fill_zero(buffer.view(), *stream_);
  copy_to_host(host.data(), buffer.view(), *stream_);
  stream_->synchronize();
  EXPECT_EQ(host, std::vector<std::int32_t>(4, 0));
}

TEST(Copy, ASimulatedLinkTakesItsTime) {
  const std::vector<std::int32_t> values = ascending(50000);  // 0.2 MB: 20 ms
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCpuSim}) {
    const auto device = make_device(
        {.kind = kind, .threads = 1, .capacity = Bytes(1 << 20), .host_link = Bytes(10'000'000)});
    const auto stream = device->make_stream({.name = "stream"});
    const Buffer buffer(Elements(50000), DType::kI32, MemoryTag::kWorkspace, *stream);
    stream->synchronize();
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::int32_t> back(values.size());
    copy_from_host(buffer.view(), values.data(), *stream);
    copy_to_host(back.data(), buffer.view(), *stream);
    stream->synchronize();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(back, values);
    EXPECT_GE(taken.count(), kind == DeviceKind::kCpuSim ? 0.04 : 0.0);
  }
}

TEST(Copy, CrossesBetweenDevicesOfOneExecutor) {
  const auto executor = internal::make_stepped_executor(5);
  const auto cpu = internal::make_cpu_device({.threads = 1}, *executor);
  const auto sim = internal::make_cpu_device(
      {.kind = DeviceKind::kCpuSim, .threads = 1, .capacity = Bytes(4096)}, *executor);
  const auto cpu_stream = cpu->make_stream({.name = "cpu"});
  const auto sim_stream = sim->make_stream({.name = "sim"});
  const Buffer host(Elements(4), DType::kI32, MemoryTag::kWorkspace, *cpu_stream);
  const Buffer device(Elements(4), DType::kI32, MemoryTag::kWorkspace, *sim_stream);
  const auto values = ascending(4);
  copy_from_host(host.view(), values.data(), *cpu_stream);
  sim_stream->wait(cpu_stream->record());
  copy(device.view(), host.view(), *sim_stream);
  std::vector<std::int32_t> back(4);
  copy_to_host(back.data(), device.view(), *sim_stream);
  sim_stream->synchronize();
  EXPECT_EQ(back, values);
}

}  // namespace
}  // namespace zero3
