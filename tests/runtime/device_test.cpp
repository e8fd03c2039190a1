#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include <zero3/buffer.h>
#include <zero3/device.h>
#include <zero3/error.h>
#include <zero3/internal/cpu_stream.h>
#include "support/contains.h"
#include "support/executors.h"
#include "support/thrown.h"

namespace zero3 {
namespace {

using test::contains;
using test::thrown;

TEST(DeviceKind, NamesAreReadBack) {
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCpuSim, DeviceKind::kCuda}) {
    EXPECT_EQ(parse_device_kind(name_of(kind)), kind);
  }
}

TEST(DeviceKind, UnknownNamesListTheKnown) {
  EXPECT_TRUE(contains(thrown<UsageError>([] { static_cast<void>(parse_device_kind("gpu")); }),
                       {"'gpu'", "cpu, cpu:sim, cuda"}));
}

TEST(AvailableCores, AreAtLeastOne) {
  EXPECT_GE(available_cores(), 1);
}

TEST(Device, OfThePlainKindIsHostAccessible) {
  const auto device = make_device({});
  EXPECT_EQ(device->kind(), DeviceKind::kCpu);
  EXPECT_TRUE(device->host_accessible());
  EXPECT_EQ(device->ordinal(), 0);
}

TEST(Device, HasAllCoresUnlessToldOtherwise) {
  EXPECT_EQ(make_device({})->threads(), available_cores());
  EXPECT_EQ(make_device({.threads = 3})->threads(), 3);
}

TEST(Device, RefusesANegativeNumberOfThreads) {
  EXPECT_TRUE(contains(thrown<UsageError>([] { static_cast<void>(make_device({.threads = -1})); }),
                       {"-1 threads"}));
}

TEST(Device, OfAKindThatIsNotBuiltSaysWhatToChoose) {
  EXPECT_TRUE(contains(
      thrown<DeviceError>([] { static_cast<void>(make_device({.kind = DeviceKind::kCuda})); }),
      {"'cuda'", "without CUDA", "cpu"}));
}

TEST(Device, OfACpuExecutorIsACpu) {
  const auto executor = internal::make_threaded_executor();
  EXPECT_TRUE(contains(thrown<UsageError>([&] {
                         static_cast<void>(
                             internal::make_cpu_device({.kind = DeviceKind::kCuda}, *executor));
                       }),
                       {"'cuda'"}));
}

TEST(Device, LimitIsTheOneAskedFor) {
  const auto device = make_device({.threads = 1, .memory_limit = Bytes(128)});
  EXPECT_EQ(device->limit().limit(), Bytes(128));
  const auto stream = device->make_stream({});
  EXPECT_THROW(Buffer(Elements(129), DType::kU8, MemoryTag::kWorkspace, *stream), OutOfMemoryError);
}

TEST(Device, MakesStreamsThatRunAtTheSameTime) {
  const auto device = make_device({.threads = 1});
  const auto first = device->make_stream({.name = "first"});
  const auto second = device->make_stream({.name = "second"});
  // Each waits for the other inside its operation: only threads of their own get through.
  std::atomic<int> arrived = 0;
  for (Stream* stream : {first.get(), second.get()}) {
    stream->call("meet", [&arrived] {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
  }
  first->synchronize();
  second->synchronize();
  EXPECT_EQ(arrived, 2);
}

TEST(Device, SharesASteppedExecutorWithOthers) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const auto executor = internal::make_stepped_executor(seed);
    const auto one = internal::make_cpu_device({.threads = 1, .rank = 0}, *executor);
    const auto other = internal::make_cpu_device({.threads = 1, .rank = 1}, *executor);
    const auto first = one->make_stream({.name = "first"});
    const auto second = other->make_stream({.name = "second"});
    int value = 0;
    first->call("write", [&value] { value = 1; });
    second->wait(first->record());
    second->call("double", [&value] { value *= 2; });
    second->synchronize();
    EXPECT_EQ(value, 2);
  }
}

/// A stream of a device that no CPU executor runs.
class ForeignStream final : public Stream {
 public:
  explicit ForeignStream(Device& device) : device_(device) {}
  Event record() override { return Event(std::make_shared<Point>()); }
  void wait(const Event&) override {}
  void synchronize() override {}
  void call(std::string_view, std::function<void()>) override {}
  Device& device() const override { return device_; }
  const std::string& name() const override { return name_; }
  std::uint64_t id() const override { return 0; }

 private:
  class Point final : public EventState {
   public:
    bool complete() override { return false; }
    void synchronize() override {}
  };
  Device& device_;
  std::string name_ = "foreign";
};

TEST(Enqueue, RefusesAStreamOfAnotherKind) {
  const auto device = make_device({.threads = 1});
  ForeignStream stream(*device);
  EXPECT_TRUE(contains(
      thrown<UsageError>([&] { internal::enqueue(stream, {.name = "task", .run = [] {}}); }),
      {"'task'", "'foreign'"}));
}

TEST(Wait, RefusesAPointOfAnotherKind) {
  const auto device = make_device({.threads = 1});
  ForeignStream foreign(*device);
  const auto stream = device->make_stream({.name = "stream"});
  EXPECT_TRUE(contains(thrown<UsageError>([&] { stream->wait(foreign.record()); }),
                       {"'stream'", "another kind of device"}));
}

}  // namespace
}  // namespace zero3
