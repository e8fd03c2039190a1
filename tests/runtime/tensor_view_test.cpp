#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include <zero3/buffer.h>
#include <zero3/internal/cpu_stream.h>
#include "support/contains.h"
#include "support/executors.h"
#include "support/thrown.h"

namespace zero3 {
namespace {

using test::contains;
using test::Mode;
using test::OwnDevice;
using test::thrown;

class TensorViewTest : public ::testing::Test {
 protected:
  [[nodiscard]] TensorView view() const { return buffer_.view(); }
  [[nodiscard]] std::int64_t offset_of(const TensorView& part) const {
    return static_cast<std::byte*>(part.data()) - static_cast<std::byte*>(view().data());
  }

  OwnDevice own_{Mode{}};
  std::unique_ptr<Stream> stream_ = own_.stream("home");
  Buffer buffer_{Elements(10), DType::kF32, MemoryTag::kWorkspace, *stream_};
};

TEST_F(TensorViewTest, DefaultSeesNothing) {
  const TensorView nothing;
  EXPECT_TRUE(nothing.empty());
  EXPECT_TRUE(nothing.alive());
  EXPECT_EQ(nothing.data(), nullptr);
  EXPECT_EQ(nothing.slice(0, 0).count(), 0);
}

TEST_F(TensorViewTest, DefaultHasNoDevice) {
  EXPECT_TRUE(contains(thrown<UsageError>([] { static_cast<void>(TensorView().device()); }),
                       {"no device"}));
}

TEST_F(TensorViewTest, SlicesCountElements) {
  const TensorView part = view().slice(3, 4);
  EXPECT_EQ(part.count(), 4);
  EXPECT_EQ(part.bytes(), Bytes(16));
  EXPECT_EQ(offset_of(part), 12);
  EXPECT_EQ(&part.device(), own_.device.get());
}

TEST_F(TensorViewTest, SlicesOfSlicesAddUp) {
  EXPECT_EQ(offset_of(view().slice(3, 7).slice(2, 1)), 20);
}

TEST_F(TensorViewTest, SlicesMayBeEmptyAtEitherEnd) {
  EXPECT_TRUE(view().slice(0, 0).empty());
  EXPECT_TRUE(view().slice(10, 0).empty());
  EXPECT_EQ(view().slice(0, 10).count(), 10);
}

TEST_F(TensorViewTest, RefusesSlicesThatReachOutside) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> outside = {
      {0, 11}, {10, 1}, {11, 0}, {-1, 1}, {0, -1}, {5, INT64_MAX}, {INT64_MAX, 1}};
  for (const auto& [begin, count] : outside) {
    EXPECT_TRUE(contains(
        thrown<UsageError>([&, b = begin, c = count] { static_cast<void>(view().slice(b, c)); }),
        {concat("slice of ", count, " elements from ", begin), "view of 10"}));
  }
}

TEST_F(TensorViewTest, SeesTheSameBytesAsAnotherType) {
  const TensorView bytes = view().as(DType::kU8);
  EXPECT_EQ(bytes.count(), 40);
  EXPECT_EQ(bytes.data(), view().data());
  EXPECT_EQ(bytes.as(DType::kF64).count(), 5);
}

TEST_F(TensorViewTest, RefusesATypeThatDoesNotDivide) {
  EXPECT_TRUE(
      contains(thrown<UsageError>([&] { static_cast<void>(view().slice(0, 3).as(DType::kF64)); }),
               {"12 bytes", "fp64"}));
}

TEST_F(TensorViewTest, RefusesATypeThatIsNotAligned) {
  const TensorView odd = view().as(DType::kU8).slice(1, 8);
  EXPECT_TRUE(
      contains(thrown<UsageError>([&] { static_cast<void>(odd.as(DType::kF32)); }), {"middle"}));
}

TEST_F(TensorViewTest, SpanReadsAndWritesOnTheHost) {
  view().host_span<float>()[9] = 4.0F;
  EXPECT_EQ(view().slice(9, 1).host_span<const float>()[0], 4.0F);
}

TEST_F(TensorViewTest, SpanRefusesAnotherType) {
  EXPECT_TRUE(
      contains(thrown<UsageError>([&] { static_cast<void>(view().host_span<std::int32_t>()); }),
               {"fp32", "int32"}));
}

TEST_F(TensorViewTest, NativeRefusesAnotherType) {
  EXPECT_TRUE(
      contains(thrown<UsageError>([&] { static_cast<void>(internal::native<BFloat16>(view())); }),
               {"fp32", "bf16"}));
}

TEST_F(TensorViewTest, NativeIsTheAddressOnAPlainDevice) {
  EXPECT_EQ(internal::native_data(view()), view().data());
  EXPECT_EQ(internal::native_data(view().slice(0, 0)), nullptr);
}

TEST(BlockTable, GivesEachBlockASlotOfItsOwn) {
  BlockTable table;
  const BlockRef first = table.acquire();
  const BlockRef second = table.acquire();
  table.release(first);
  EXPECT_FALSE(first.alive());
  EXPECT_TRUE(second.alive());
}

TEST(BlockTable, ReusesSlotsWithANewGeneration) {
  BlockTable table;
  const BlockRef first = table.acquire();
  table.release(first);
  const BlockRef second = table.acquire();
  EXPECT_EQ(first.slot, second.slot);
  EXPECT_FALSE(first.alive());
  EXPECT_TRUE(second.alive());
}

TEST(BlockTable, RenewEndsEarlierReferences) {
  BlockTable table;
  const BlockRef first = table.acquire();
  const BlockRef second = table.renew(first);
  EXPECT_FALSE(first.alive());
  EXPECT_TRUE(second.alive());
}

TEST(BlockTable, NoBlockIsAlwaysAlive) {
  BlockTable table;
  table.release(BlockRef());
  EXPECT_TRUE(BlockRef().alive());
}

}  // namespace
}  // namespace zero3
