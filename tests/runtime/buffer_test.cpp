#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <zero3/buffer.h>
#include <zero3/copy.h>
#include "support/contains.h"
#include "support/dropping_device.h"
#include "support/executors.h"
#include "support/thrown.h"

namespace zero3 {
namespace {

using test::contains;
using test::Mode;
using test::OwnDevice;
using test::thrown;

constexpr MemoryTag kTag = MemoryTag::kWorkspace;

class BufferTest : public ::testing::Test {
 protected:
  Buffer make(std::int64_t count, DType dtype = DType::kF32) {
    return Buffer(Elements(count), dtype, kTag, *stream_);
  }
  [[nodiscard]] Bytes in_use() const { return own_.device->stats().in_use().total(); }

  OwnDevice own_{Mode{}};
  std::unique_ptr<Stream> stream_ = own_.stream("home");
};

TEST_F(BufferTest, DefaultOwnsNothing) {
  const Buffer buffer;
  EXPECT_TRUE(buffer.empty());
  EXPECT_EQ(buffer.size(), Elements(0));
}

TEST_F(BufferTest, EmptyHasNoView) {
  EXPECT_TRUE(
      contains(thrown<UsageError>([] { static_cast<void>(Buffer().view()); }), {"empty buffer"}));
}

TEST_F(BufferTest, KnowsSizeAndType) {
  const Buffer buffer = make(17, DType::kBF16);
  EXPECT_EQ(buffer.size(), Elements(17));
  EXPECT_EQ(buffer.dtype(), DType::kBF16);
  EXPECT_EQ(buffer.view().bytes(), Bytes(34));
}

TEST_F(BufferTest, StartsAtAMultipleOfTheAlignment) {
  std::vector<Buffer> buffers;
  for (const std::int64_t count : {1, 15, 16, 17, 31, 1000}) {
    buffers.push_back(make(count));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffers.back().view().data()) % kAlignment, 0U);
  }
}

TEST_F(BufferTest, OfNoElementsIsNotEmpty) {
  const Buffer buffer = make(0);
  EXPECT_FALSE(buffer.empty());
  EXPECT_TRUE(buffer.view().empty());
  EXPECT_EQ(&buffer.view().device(), own_.device.get());
}

TEST_F(BufferTest, RefusesSizesWhoseBytesDoNotFit) {
  for (const std::int64_t count : {std::int64_t{-1}, INT64_MAX, INT64_MAX / 4}) {
    EXPECT_TRUE(contains(thrown<UsageError>([&] { make(count); }), {concat(count)}));
  }
  EXPECT_EQ(in_use(), Bytes(0));
}

TEST_F(BufferTest, RefusedAllocationLeavesNothingBehind) {
  own_.device->limit().set_limit(Bytes(64));
  EXPECT_THROW(make(17), OutOfMemoryError);
  EXPECT_EQ(in_use(), Bytes(0));
}

TEST_F(BufferTest, ReturnsItsBlockWhenDestroyed) {
  { const Buffer buffer = make(100); }
  EXPECT_EQ(in_use(), Bytes(0));
}

TEST_F(BufferTest, ReturnsItsBlockOnce) {
  Buffer buffer = make(100);
  buffer.reset();
  buffer.reset();
  EXPECT_TRUE(buffer.empty());
  EXPECT_EQ(in_use(), Bytes(0));
}

TEST_F(BufferTest, MovesTheBlock) {
  Buffer from = make(16);
  const void* data = from.view().data();
  const Buffer to = std::move(from);
  EXPECT_TRUE(from.empty());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(to.view().data(), data);
  EXPECT_EQ(in_use(), Bytes(64));
}

TEST_F(BufferTest, MoveAssignmentReturnsTheOldBlock) {
  Buffer target = make(16);
  target = make(32);
  EXPECT_EQ(target.size(), Elements(32));
  EXPECT_EQ(in_use(), Bytes(128));
}

TEST_F(BufferTest, MoveToItselfKeepsEverything) {
  Buffer buffer = make(16);
  const TensorView view = buffer.view();
  Buffer& same = buffer;
  buffer = std::move(same);
  EXPECT_TRUE(view.alive());
  EXPECT_EQ(buffer.size(), Elements(16));
}

TEST_F(BufferTest, ViewDiesWithIt) {
  TensorView view;
  {
    const Buffer buffer = make(16);
    view = buffer.view();
    EXPECT_TRUE(view.alive());
  }
  EXPECT_FALSE(view.alive());
}

TEST_F(BufferTest, ViewDiesWithReset) {
  Buffer buffer = make(16);
  const TensorView view = buffer.view().slice(4, 4);
  buffer.reset();
  EXPECT_TRUE(contains(thrown<UsageError>([&] { static_cast<void>(view.data()); }),
                       {"4 fp32", "released or moved"}));
}

TEST_F(BufferTest, ViewDiesWithAMove) {
  Buffer from = make(16);
  const TensorView view = from.view();
  const Buffer to = std::move(from);
  EXPECT_FALSE(view.alive());
  EXPECT_TRUE(to.view().alive());
}

TEST_F(BufferTest, DeadViewStaysDeadWhenTheBlockIsUsedAgain) {
  Buffer buffer = make(16);
  const TensorView old = buffer.view();
  buffer.reset();
  const Buffer again = make(16);
  EXPECT_FALSE(old.alive());
  EXPECT_TRUE(again.view().alive());
}

TEST_F(BufferTest, DeadViewIsRefusedByOperations) {
  Buffer buffer = make(16);
  const TensorView view = buffer.view();
  buffer.reset();
  EXPECT_THROW(fill_zero(view, *stream_), UsageError);
}

TEST_F(BufferTest, OfAHundredIsEachTheOnlyOwnerOfItsBytes) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < 100; ++i) {
    buffers.push_back(make(16, DType::kI32));
    fill_zero(buffers.back().view(), *stream_);
    const std::vector<std::int32_t> values(16, i);
    copy_from_host(buffers.back().view(), values.data(), *stream_);
    stream_->synchronize();
  }
  for (int i = 0; i < 100; ++i) {
    for (const int value : buffers[static_cast<std::size_t>(i)].view().host_span<std::int32_t>()) {
      ASSERT_EQ(value, i);
    }
  }
}

TEST_F(BufferTest, ReturnsItsBlockInTheOrderOfItsHome) {
  test::WaitCounter waits;
  const auto own_home = std::make_unique<test::ObservedStream>(own_.stream("new home"), waits);
  Buffer buffer = make(16);
  buffer.set_home(*own_home);
  buffer.reset();
  const Buffer again(Elements(16), DType::kF32, kTag, *own_home);
  EXPECT_EQ(own_.device->pool().blocks_taken(), 1);
  EXPECT_EQ(waits.count(), 0);
}

TEST_F(BufferTest, RefusesAHomeOnAnotherDevice) {
  const OwnDevice other{Mode{}};
  const auto stream = other.stream("elsewhere");
  Buffer buffer = make(16);
  EXPECT_TRUE(
      contains(thrown<UsageError>([&] { buffer.set_home(*stream); }), {"'elsewhere'", "device"}));
}

TEST_F(BufferTest, RefusesAHomeForNothing) {
  Buffer buffer;
  EXPECT_THROW(buffer.set_home(*stream_), UsageError);
  EXPECT_TRUE(buffer.empty());
}

class PoisonTest : public ::testing::TestWithParam<DeviceKind> {
 protected:
  std::vector<std::uint32_t> contents(const Buffer& buffer) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(buffer.size().count()));
    copy_to_host(words.data(), buffer.view(), *stream_);
    stream_->synchronize();
    return words;
  }

  OwnDevice own_{Mode{},
                 {.kind = GetParam(), .threads = 1, .capacity = Bytes(4096), .poison = true}};
  std::unique_ptr<Stream> stream_ = own_.stream("home");
};
INSTANTIATE_TEST_SUITE_P(Kinds, PoisonTest,
                         ::testing::Values(DeviceKind::kCpu, DeviceKind::kCpuSim),
                         [](const auto& tested) {
                           return tested.param == DeviceKind::kCpu ? "cpu" : "cpu_sim";
                         });

TEST_P(PoisonTest, FillsFreshBlocks) {
  const Buffer buffer(Elements(5), DType::kU32, kTag, *stream_);
  EXPECT_EQ(contents(buffer), std::vector<std::uint32_t>(5, 0xffffffffU));
}

TEST_P(PoisonTest, FillsReusedBlocks) {
  {
    const Buffer buffer(Elements(5), DType::kU32, kTag, *stream_);
    fill_zero(buffer.view(), *stream_);
  }
  const Buffer again(Elements(5), DType::kU32, kTag, *stream_);
  EXPECT_EQ(contents(again), std::vector<std::uint32_t>(5, 0xffffffffU));
}

TEST_P(PoisonTest, FillsReturnedBlocksAfterTheirLastUse) {
  const std::uint32_t* data = nullptr;
  std::uint32_t last = 0;
  {
    const Buffer buffer(Elements(5), DType::kU32, kTag, *stream_);
    fill_zero(buffer.view(), *stream_);
    data = internal::native<std::uint32_t>(buffer.view());
    stream_->call("use", [data, &last] { last = data[4]; });
  }
  stream_->synchronize();
  EXPECT_EQ(last, 0U);
  EXPECT_EQ(data[4], 0xffffffffU);  // kept by the pool
}

}  // namespace
}  // namespace zero3
