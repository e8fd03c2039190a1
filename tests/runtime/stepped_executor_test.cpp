#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <zero3/internal/cpu_stream.h>
#include "support/contains.h"
#include "support/executors.h"
#include "support/test_gate.h"
#include "support/thrown.h"

namespace zero3 {
namespace {

using test::contains;
using test::SteppedDevice;
using test::TestGate;
using test::thrown;

/// The order in which two operations of each of two streams run.
std::string order_of_two_streams(std::uint64_t seed) {
  const SteppedDevice bed(seed);
  const auto a = bed.stream("a");
  const auto b = bed.stream("b");
  std::string order;
  for (Stream* stream : {a.get(), b.get()}) {
    for (int i = 0; i < 2; ++i) {
      stream->call("step", [&order, stream] { order += stream->name(); });
    }
  }
  a->synchronize();
  b->synchronize();
  return order;
}

TEST(SteppedExecutor, RepeatsTheOrderOfASeed) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    ASSERT_EQ(order_of_two_streams(seed), order_of_two_streams(seed)) << "seed " << seed;
  }
}

TEST(SteppedExecutor, ReachesEveryInterleavingAndNoOther) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 200; ++seed) seen.insert(order_of_two_streams(seed));
  EXPECT_EQ(seen, (std::set<std::string>{"aabb", "abab", "abba", "baab", "baba", "bbaa"}));
}

/// Layers are gathered into two slots, computed with and released; returns how many elements the
/// computation found that were not its layer's. A missing wait for the release lets a gather
/// overwrite a slot in use.
int wrong_elements(std::uint64_t seed, bool wait_for_release) {
  const SteppedDevice bed(seed);
  const auto gather = bed.stream("gather");
  const auto compute = bed.stream("compute");
  std::array<std::array<int, 8>, 2> slots{};
  std::array<Event, 2> released;
  int wrong = 0;
  for (int layer = 0; layer < 16; ++layer) {
    auto& slot = slots[static_cast<std::size_t>(layer % 2)];
    Event& release = released[static_cast<std::size_t>(layer % 2)];
    if (wait_for_release) gather->wait(release);
    internal::enqueue(*gather, {.name = "gather",
                                .run = [&slot, layer] { slot.fill(layer); },
                                .outputs = {{slot.data(), sizeof(slot)}}});
    compute->wait(gather->record());
    compute->call("compute", [&slot, &wrong, layer] {
      for (const int value : slot) wrong += value != layer;
    });
    release = compute->record();
  }
  compute->synchronize();
  gather->synchronize();
  return wrong;
}

TEST(SteppedExecutor, ExposesAMissingWaitInMostSeeds) {
  int exposed = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) exposed += wrong_elements(seed, false) != 0;
  EXPECT_GE(exposed, 35);
}

TEST(SteppedExecutor, FindsNothingWhereTheWaitsAreThere) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    ASSERT_EQ(wrong_elements(seed, true), 0) << "seed " << seed;
  }
}

TEST(SteppedExecutor, ShowsOverlapBySpoiledOutputs) {
  int spoiled = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const SteppedDevice bed(seed);
    const auto writer = bed.stream("writer");
    const auto reader = bed.stream("reader");
    std::uint32_t value = 7;
    std::uint32_t read = 0;
    internal::enqueue(*writer, {.name = "write 7 again",
                                .run = [&value] { value = 7; },
                                .outputs = {{&value, sizeof(value)}}});
    reader->call("read", [&] { read = value; });
    writer->synchronize();
    reader->synchronize();
    ASSERT_TRUE(read == 7 || read == 0xffffffffU) << read;
    spoiled += read != 7;
  }
  EXPECT_GE(spoiled, 5);
}

TEST(SteppedExecutor, SpoilsNothingBeforeTheGateOpens) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const SteppedDevice bed(seed);
    const auto writer = bed.stream("writer");
    const auto reader = bed.stream("reader");
    int value = 7;
    int read = 0;
    reader->call("read", [&] { read = value; });
    writer->wait(reader->record());
    internal::enqueue(
        *writer,
        {.name = "write", .run = [&value] { value = 8; }, .outputs = {{&value, sizeof(value)}}});
    writer->synchronize();
    ASSERT_EQ(read, 7) << "seed " << seed;
    ASSERT_EQ(value, 8) << "seed " << seed;
  }
}

TEST(SteppedExecutor, SpoilsNothingAfterAnError) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const SteppedDevice bed(seed);
    const auto stream = bed.stream("failed");
    int value = 7;
    stream->call("fail", [] { throw std::runtime_error("first"); });
    internal::enqueue(
        *stream,
        {.name = "write", .run = [&value] { value = 8; }, .outputs = {{&value, sizeof(value)}}});
    EXPECT_THROW(stream->synchronize(), std::runtime_error);
    EXPECT_EQ(value, 7);
  }
}

TEST(SteppedExecutor, CountsItsSteps) {
  const SteppedDevice bed(0);
  const auto stream = bed.stream("counted");
  stream->call("one", [] {});
  stream->synchronize();  // one more, the point that it waits for
  EXPECT_EQ(bed.executor->steps(), 2);
}

TEST(SteppedExecutor, OpensAGateFromAnotherStream) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const SteppedDevice bed(seed);
    const auto opener = bed.stream("opener");
    const auto waiter = bed.stream("waiter");
    const auto gate = std::make_shared<TestGate>();
    internal::enqueue(*waiter, {.name = "gated", .run = nullptr, .gate = gate});
    opener->call("open", [gate] { gate->let_pass(); });
    EXPECT_NO_THROW(waiter->synchronize());
  }
}

TEST(SteppedExecutor, ReportsADeadlockWithEveryHead) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const SteppedDevice bed(seed);
    const auto first = bed.stream("first");
    const auto second = bed.stream("second");
    internal::enqueue(*first, {.name = "gated",
                               .run = nullptr,
                               .gate = std::make_shared<TestGate>("a gate that nobody opens")});
    second->wait(first->record());
    EXPECT_TRUE(
        contains(thrown<DeviceError>([&] { second->synchronize(); }),
                 {"deadlock", "stream 'first' of rank 0 holds 'gated' for a gate that nobody opens",
                  "stream 'second' of rank 0 holds 'wait' for a point of stream 'first'"}));
  }
}

TEST(SteppedExecutor, SkipsWhatADestroyedStreamCanNeverRun) {
  const SteppedDevice bed(1);
  auto stuck = bed.stream("stuck");
  const auto other = bed.stream("other");
  std::string told;
  internal::enqueue(*stuck, {.name = "gated",
                             .run = nullptr,
                             .gate = std::make_shared<TestGate>(),
                             .skipped = [&told](std::exception_ptr error) {
                               told = thrown<DeviceError>([&] { std::rethrow_exception(error); });
                             }});
  const Event after = stuck->record();
  other->wait(after);
  EXPECT_NO_THROW(stuck.reset());
  EXPECT_TRUE(contains(told, {"deadlock", "the end of stream 'stuck'"}));
  EXPECT_TRUE(after.complete());
  EXPECT_THROW(other->synchronize(), DeviceError);
}

TEST(SteppedExecutor, ReportsAHostThatOnlyAsks) {
  const SteppedDevice bed(0);
  const auto stream = bed.stream("stuck");
  internal::enqueue(*stream,
                    {.name = "gated", .run = nullptr, .gate = std::make_shared<TestGate>()});
  const Event event = stream->record();
  const auto ask_forever = [&] {
    while (!event.complete()) {
    }
  };
  EXPECT_TRUE(
      contains(thrown<DeviceError>(ask_forever), {"deadlock", "again and again", "'stuck'"}));
}

TEST(SteppedExecutor, MovesWhileAHostAsks) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const SteppedDevice bed(seed);
    const auto stream = bed.stream("asked");
    for (int i = 0; i < 1000; ++i) stream->call("step", [] {});
    const Event event = stream->record();
    while (!event.complete()) {
    }
    EXPECT_NO_THROW(stream->synchronize());
  }
}

}  // namespace
}  // namespace zero3
