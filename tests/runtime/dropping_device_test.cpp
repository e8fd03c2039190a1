#include "support/dropping_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero3/buffer.h>
#include <zero3/copy.h>
#include "support/contains.h"
#include "support/wait_analysis.h"

namespace zero3::test {
namespace {

/// A device on a stepped executor, with streams that an observer sees.
struct Observed {
  Observed(std::uint64_t seed, StreamObserver& observer)
      : executor(internal::make_stepped_executor(seed)),
        device(internal::make_cpu_device({.threads = 1}, *executor), observer),
        a(device.make_stream({.name = "a"})),
        b(device.make_stream({.name = "b"})) {}

  std::unique_ptr<internal::SteppedExecutor> executor;
  ObservedDevice device;
  std::unique_ptr<Stream> a, b;
};

TEST(WaitCounter, CountsTheWaitsOfAllStreams) {
  WaitCounter counter;
  const Observed test(0, counter);
  test.a->wait(test.b->record());
  test.b->wait(test.a->record());
  EXPECT_EQ(counter.count(), 2);
  EXPECT_EQ(counter.dropped(), "");
}

TEST(WaitCounter, CountsWaitsForNothing) {
  WaitCounter counter;
  const Observed test(0, counter);
  const Event passed = test.b->record();
  test.b->synchronize();
  test.a->wait(Event());
  test.a->wait(passed);
  EXPECT_EQ(counter.count(), 2);
}

TEST(WaitCounter, DropsTheChosenWaitAndRemembersIt) {
  WaitCounter counter(2);
  const Observed test(0, counter);
  const auto gate_of_b = test.b->record();
  test.b->wait(Event());
  test.a->wait(gate_of_b);
  test.a->wait(test.b->record());
  EXPECT_TRUE(
      contains(counter.dropped(), {"wait 2", "wait 1 of stream 'a'", "a point of stream 'b'"}));
}

TEST(WaitCounter, DroppedWaitOrdersNothing) {
  int out_of_order = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    WaitCounter counter(0);
    const Observed test(seed, counter);
    std::vector<int> ran;
    test.a->call("first", [&ran] { ran.push_back(1); });
    test.b->wait(test.a->record());
    test.b->call("second", [&ran] { ran.push_back(2); });
    test.b->synchronize();
    test.a->synchronize();
    out_of_order += ran.front() == 2;
  }
  EXPECT_GT(out_of_order, 0);
}

TEST(DroppingDevice, HasTheMemoryOfTheInnerDevice) {
  WaitCounter counter;
  const auto executor = internal::make_stepped_executor(0);
  auto inner = internal::make_cpu_device({.threads = 1}, *executor);
  const Device* inner_device = inner.get();
  DroppingDevice device(std::move(inner), counter);
  const auto stream = device.make_stream({.name = "dropping"});
  const Buffer buffer(Elements(16), DType::kF32, MemoryTag::kWorkspace, *stream);
  EXPECT_EQ(&buffer.view().device(), inner_device);
  EXPECT_EQ(device.stats().in_use().total(), Bytes(64));
}

TEST(DroppingDevice, TakesOperationsOfTheTree) {
  WaitCounter counter;
  const auto executor = internal::make_stepped_executor(0);
  DroppingDevice device(internal::make_cpu_device({.threads = 1}, *executor), counter);
  const auto stream = device.make_stream({.name = "dropping"});
  const Buffer buffer(Elements(4), DType::kI32, MemoryTag::kWorkspace, *stream);
  fill_zero(buffer.view(), *stream);
  stream->synchronize();
  EXPECT_EQ(buffer.view().host_span<std::int32_t>()[3], 0);
}

/// Layers are gathered into two slots by one stream and used by another; returns how many of them
/// were used with the values of another layer. The waits of the first two layers for a slot are for
/// nothing.
int layers_used_wrongly(std::uint64_t seed, StreamObserver& observer) {
  const Observed test(seed, observer);
  std::array<int, 2> slots{};
  std::array<Event, 2> released;
  int wrong = 0;
  for (int layer = 0; layer < 6; ++layer) {
    int& slot = slots[static_cast<std::size_t>(layer % 2)];
    Event& release = released[static_cast<std::size_t>(layer % 2)];
    test.a->wait(release);
    internal::enqueue(*test.a, {.name = "gather",
                                .run = [&slot, layer] { slot = layer; },
                                .outputs = {{&slot, sizeof(slot)}}});
    test.b->wait(test.a->record());
    test.b->call("use", [&slot, &wrong, layer] { wrong += slot != layer; });
    release = test.b->record();
  }
  test.a->synchronize();
  test.b->synchronize();
  return wrong;
}

TEST(WaitAnalysis, TellsNeededWaitsFromOthers) {
  WaitAnalysis analysis;
  EXPECT_EQ(layers_used_wrongly(1, analysis), 0);
  EXPECT_EQ(analysis.needed(), (std::vector<std::int64_t>{1, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST(WaitAnalysis, AgreesWithDroppingEachWait) {
  WaitAnalysis analysis;
  static_cast<void>(layers_used_wrongly(1, analysis));
  const auto needed = analysis.needed();
  const auto waits = static_cast<std::int64_t>(analysis.waits_so_far().size());
  for (std::int64_t number = 0; number < waits; ++number) {
    int noticed = 0;
    std::string dropped;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      WaitCounter counter(number);
      noticed += layers_used_wrongly(seed, counter) != 0;
      dropped = counter.dropped();
    }
    const bool is_needed = std::find(needed.begin(), needed.end(), number) != needed.end();
    EXPECT_EQ(noticed > 0, is_needed) << dropped;
  }
}

TEST(WaitAnalysis, CallsOneOfTwoWaitsForOnePointNeeded) {
  WaitAnalysis analysis;
  const Observed test(0, analysis);
  test.a->call("write", [] {});
  const Event written = test.a->record();
  test.b->wait(written);
  test.b->wait(written);
  test.b->call("read", [] {});
  EXPECT_EQ(analysis.needed().size(), 1U);
}

TEST(WaitAnalysis, KnowsWhatTheHostHasWaitedFor) {
  WaitAnalysis analysis;
  const Observed test(0, analysis);
  test.a->call("write", [] {});
  const Event written = test.a->record();
  test.a->synchronize();
  test.b->wait(written);
  test.b->call("read", [] {});
  EXPECT_TRUE(analysis.needed().empty());
}

TEST(WaitAnalysis, FollowsPointsOverSeveralStreams) {
  WaitAnalysis analysis;
  Observed test(0, analysis);
  const auto c = test.device.make_stream({.name = "c"});
  test.a->call("write", [] {});
  const Event written = test.a->record();
  test.b->wait(written);
  test.b->call("read", [] {});
  c->wait(test.b->record());
  c->call("read", [] {});
  c->wait(written);  // implied by the one for b
  c->call("read again", [] {});
  EXPECT_EQ(analysis.needed(), (std::vector<std::int64_t>{0, 1}));
}

}  // namespace
}  // namespace zero3::test
