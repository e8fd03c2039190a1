#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <zero3/internal/cpu_stream.h>
#include "support/contains.h"
#include "support/test_gate.h"
#include "support/thrown.h"

namespace zero3 {
namespace {

using internal::SteppedExecutor;
using test::contains;
using test::TestGate;
using test::thrown;

struct Bed {
  explicit Bed(std::uint64_t seed)
      : executor(internal::make_stepped_executor(seed)),
        device(internal::make_cpu_device({.threads = 1}, *executor)) {}

  [[nodiscard]] std::unique_ptr<Stream> stream(std::string name) const {
    return device->make_stream({.name = std::move(name)});
  }

  std::unique_ptr<SteppedExecutor> executor;
  std::unique_ptr<Device> device;
};

/// The order in which two operations of each of two streams run.
std::string order_of_two_streams(std::uint64_t seed) {
  const Bed bed(seed);
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
  const Bed bed(seed);
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
    const Bed bed(seed);
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
    const Bed bed(seed);
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
    const Bed bed(seed);
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
  const Bed bed(0);
  const auto stream = bed.stream("counted");
  stream->call("one", [] {});
  stream->synchronize();  // one more, the point that it waits for
  EXPECT_EQ(bed.executor->steps(), 2);
}

TEST(SteppedExecutor, OpensAGateFromAnotherStream) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const Bed bed(seed);
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
    const Bed bed(seed);
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
  const Bed bed(1);
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
  const Bed bed(0);
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
    const Bed bed(seed);
    const auto stream = bed.stream("asked");
    for (int i = 0; i < 1000; ++i) stream->call("step", [] {});
    const Event event = stream->record();
    while (!event.complete()) {
    }
    EXPECT_NO_THROW(stream->synchronize());
  }
}

/// Runs `host(index, bed)` on `hosts` threads that take turns, and returns what each threw ("" for
/// nothing).
std::vector<std::string> run_hosts(const Bed& bed, int hosts,
                                   const std::function<void(int)>& host) {
  std::vector<std::string> errors(static_cast<std::size_t>(hosts));
  std::vector<std::jthread> threads;
  for (int index = 0; index < hosts; ++index) {
    threads.emplace_back([&, index] {
      const SteppedExecutor::HostTurn turn(*bed.executor, index, hosts);
      try {
        host(index);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(index)] = error.what();
      }
    });
  }
  threads.clear();
  return errors;
}

/// The order in which the operations and the calls of three hosts happen; "" when a host failed.
std::string order_of_hosts(std::uint64_t seed) {
  const Bed bed(seed);
  std::string order;
  const auto errors = run_hosts(bed, 3, [&](int index) {
    const auto stream = bed.stream("of a host");
    for (int i = 0; i < 4; ++i) {
      order += static_cast<char>('0' + index);
      stream->call("step", [&order, index] { order += static_cast<char>('a' + index); });
    }
    stream->synchronize();
  });
  return errors == std::vector<std::string>(3) ? order : "";
}

TEST(SteppedExecutorHosts, RepeatTheOrderOfASeed) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::string order = order_of_hosts(seed);
    ASSERT_EQ(order.size(), 24U) << "seed " << seed;
    ASSERT_EQ(order, order_of_hosts(seed)) << "seed " << seed;
  }
}

TEST(SteppedExecutorHosts, InterleaveDifferentlyBySeed) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 40; ++seed) seen.insert(order_of_hosts(seed));
  EXPECT_GE(seen.size(), 30U);
}

TEST(SteppedExecutorHosts, WaitForEachOthersStreams) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Bed bed(seed);
    const std::array gates{std::make_shared<TestGate>(), std::make_shared<TestGate>()};
    const auto errors = run_hosts(bed, 2, [&](int index) {
      const auto stream = bed.stream("of a host");
      const auto own = static_cast<std::size_t>(index);
      stream->call("open", [&gates, own] { gates[1 - own]->let_pass(); });
      internal::enqueue(*stream, {.name = "gated", .run = nullptr, .gate = gates[own]});
      stream->synchronize();
    });
    ASSERT_EQ(errors, std::vector<std::string>(2)) << "seed " << seed;
  }
}

TEST(SteppedExecutorHosts, AreAllToldOfADeadlock) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Bed bed(seed);
    const auto errors = run_hosts(bed, 3, [&](int index) {
      const auto stream = bed.stream(concat("of host ", index));
      internal::enqueue(*stream,
                        {.name = "gated",
                         .run = nullptr,
                         .gate = std::make_shared<TestGate>(concat("the gate of host ", index))});
      stream->synchronize();
    });
    for (std::size_t index = 0; index < errors.size(); ++index) {
      ASSERT_TRUE(contains(errors[index], {"deadlock", concat("the gate of host ", index)}))
          << "seed " << seed;
    }
  }
}

TEST(SteppedExecutorHosts, AreNamedInADeadlock) {
  const Bed bed(0);
  const auto errors = run_hosts(bed, 2, [&](int index) {
    const auto stream = bed.stream(concat("of host ", index));
    internal::enqueue(*stream,
                      {.name = "gated", .run = nullptr, .gate = std::make_shared<TestGate>()});
    stream->synchronize();
  });
  EXPECT_TRUE(errors[0].find("host 1 waits for") != std::string::npos ||
              errors[1].find("host 0 waits for") != std::string::npos)
      << errors[0] << '\n'
      << errors[1];
}

TEST(SteppedExecutorHosts, EndStreamsThatAreStuckOnAll) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Bed bed(seed);
    const auto errors = run_hosts(bed, 2, [&](int) {
      const auto stream = bed.stream("stuck");
      internal::enqueue(*stream,
                        {.name = "gated", .run = nullptr, .gate = std::make_shared<TestGate>()});
    });
    ASSERT_EQ(errors, std::vector<std::string>(2)) << "seed " << seed;
  }
}

TEST(SteppedExecutorHosts, AllOnlyAskingIsADeadlock) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const Bed bed(seed);
    const auto errors = run_hosts(bed, 2, [&](int) {
      const auto stream = bed.stream("stuck");
      internal::enqueue(*stream,
                        {.name = "gated", .run = nullptr, .gate = std::make_shared<TestGate>()});
      const Event event = stream->record();
      while (!event.complete()) {
      }
    });
    for (const std::string& error : errors) {
      ASSERT_TRUE(contains(error, {"deadlock"})) << "seed " << seed;
    }
  }
}

TEST(SteppedExecutorHosts, AskUntilAnotherOnePasses) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Bed bed(seed);
    const auto gate = std::make_shared<TestGate>();
    const auto errors = run_hosts(bed, 2, [&](int index) {
      const auto stream = bed.stream("of a host");
      if (index == 1) {
        for (int i = 0; i < 50; ++i) stream->call("step", [] {});
        stream->call("open", [gate] { gate->let_pass(); });
        stream->synchronize();
        return;
      }
      internal::enqueue(*stream, {.name = "gated", .run = nullptr, .gate = gate});
      const Event event = stream->record();
      while (!event.complete()) {
      }
    });
    ASSERT_EQ(errors, std::vector<std::string>(2)) << "seed " << seed;
  }
}

TEST(SteppedExecutorHosts, GoOnWhenOneThrows) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Bed bed(seed);
    const auto errors = run_hosts(bed, 3, [&](int index) {
      const auto stream = bed.stream("of a host");
      for (int i = 0; i < 3; ++i) stream->call("step", [] {});
      if (index == 1) throw std::runtime_error("host 1 fails");
      stream->synchronize();
    });
    ASSERT_EQ(errors, (std::vector<std::string>{"", "host 1 fails", ""})) << "seed " << seed;
  }
}

TEST(SteppedExecutorHosts, GoOnWhenOneLeavesWhileTheyWait) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Bed bed(seed);
    const auto left = bed.stream("left behind");
    const auto gate = std::make_shared<TestGate>();
    const auto errors = run_hosts(bed, 3, [&](int index) {
      if (index == 0) return left->call("open", [gate] { gate->let_pass(); });
      const auto stream = bed.stream("of a host");
      internal::enqueue(*stream, {.name = "gated", .run = nullptr, .gate = gate});
      stream->synchronize();
    });
    ASSERT_EQ(errors, std::vector<std::string>(3)) << "seed " << seed;
  }
}

TEST(SteppedExecutorHosts, SurviveAGateThatThrowsForOneOfThem) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Bed bed(seed);
    const auto gate = std::make_shared<TestGate>();
    const auto errors = run_hosts(bed, 2, [&](int index) {
      const auto stream = bed.stream("of a host");
      if (index == 1) {
        for (int i = 0; i < 10; ++i) stream->call("step", [] {});
        stream->call("fail", [gate] {
          gate->fail(std::make_exception_ptr(std::runtime_error("of the gate")));
        });
        return stream->synchronize();
      }
      bed.executor->host_wait(*gate);
    });
    ASSERT_EQ(errors, (std::vector<std::string>{"of the gate", ""})) << "seed " << seed;
  }
}

TEST(SteppedExecutorHosts, ComeInSetsOneAfterTheOther) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Bed bed(seed);
    std::atomic<int> inside = 0;
    std::atomic<int> most = 0;
    std::vector<std::jthread> threads;
    for (int index = 0; index < 2; ++index) {
      threads.emplace_back([&, index] {
        for (int set = 0; set < 3; ++set) {
          const SteppedExecutor::HostTurn turn(*bed.executor, index, 2);
          const auto stream = bed.stream("of a host");
          stream->call("count", [&] {
            most = std::max(most.load(), ++inside);
            --inside;
          });
          stream->synchronize();
        }
      });
    }
    threads.clear();
    EXPECT_EQ(most, 1);
  }
}

TEST(SteppedExecutorHosts, NeedTheTurn) {
  const Bed bed(0);
  const auto stream = bed.stream("used by both");
  std::string error;
  const auto errors = run_hosts(bed, 1, [&](int) {
    std::jthread([&] { error = thrown<UsageError>([&] { stream->call("step", [] {}); }); }).join();
  });
  EXPECT_TRUE(contains(error, {"without its turn", "HostTurn"}));
}

TEST(SteppedExecutorHosts, HaveIndicesInsideTheSet) {
  const Bed bed(0);
  for (const int index : {-1, 2, 3}) {
    EXPECT_TRUE(contains(
        thrown<UsageError>([&] { SteppedExecutor::HostTurn turn(*bed.executor, index, 2); }),
        {concat("host ", index, " is not one of 2")}));
  }
}

TEST(SteppedExecutorHosts, HaveIndicesOfTheirOwnAndAgreeAboutTheirNumber) {
  const Bed bed(0);
  std::promise<std::string> refused;
  std::vector<std::jthread> twins;
  for (int i = 0; i < 2; ++i) {
    twins.emplace_back([&] {
      try {
        const SteppedExecutor::HostTurn turn(*bed.executor, 0, 2);
      } catch (const UsageError& error) {
        refused.set_value(error.what());
      }
    });
  }
  EXPECT_TRUE(contains(refused.get_future().get(), {"host 0", "has arrived already"}));
  EXPECT_TRUE(contains(
      thrown<UsageError>([&] { const SteppedExecutor::HostTurn turn(*bed.executor, 1, 3); }),
      {"counts 3", "count 2"}));
  const SteppedExecutor::HostTurn completes_the_set(*bed.executor, 1, 2);
}

}  // namespace
}  // namespace zero3
