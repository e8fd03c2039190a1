#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
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
#include "support/executors.h"
#include "support/test_gate.h"
#include "support/thrown.h"

namespace zero3 {
namespace {

using internal::SteppedExecutor;
using test::contains;
using test::SteppedDevice;
using test::TestGate;
using test::thrown;

/// Runs `host(index)` on `hosts` threads that take turns, and returns what each threw ("" for
/// nothing).
std::vector<std::string> run_hosts(const SteppedDevice& bed, int hosts,
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
  const SteppedDevice bed(seed);
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

TEST(SteppedHosts, RepeatTheOrderOfASeed) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::string order = order_of_hosts(seed);
    ASSERT_EQ(order.size(), 24U) << "seed " << seed;
    ASSERT_EQ(order, order_of_hosts(seed)) << "seed " << seed;
  }
}

TEST(SteppedHosts, InterleaveDifferentlyBySeed) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 40; ++seed) seen.insert(order_of_hosts(seed));
  EXPECT_GE(seen.size(), 30U);
}

TEST(SteppedHosts, WaitForEachOthersStreams) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const SteppedDevice bed(seed);
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

TEST(SteppedHosts, AreAllToldOfADeadlock) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const SteppedDevice bed(seed);
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

TEST(SteppedHosts, AreNamedInADeadlock) {
  const SteppedDevice bed(0);
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

TEST(SteppedHosts, EndStreamsThatAreStuckOnAll) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const SteppedDevice bed(seed);
    const auto errors = run_hosts(bed, 2, [&](int) {
      const auto stream = bed.stream("stuck");
      internal::enqueue(*stream,
                        {.name = "gated", .run = nullptr, .gate = std::make_shared<TestGate>()});
    });
    ASSERT_EQ(errors, std::vector<std::string>(2)) << "seed " << seed;
  }
}

TEST(SteppedHosts, AllOnlyAskingIsADeadlock) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const SteppedDevice bed(seed);
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

TEST(SteppedHosts, AskUntilAnotherOnePasses) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const SteppedDevice bed(seed);
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

TEST(SteppedHosts, GoOnWhenOneThrows) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const SteppedDevice bed(seed);
    const auto errors = run_hosts(bed, 3, [&](int index) {
      const auto stream = bed.stream("of a host");
      for (int i = 0; i < 3; ++i) stream->call("step", [] {});
      if (index == 1) throw std::runtime_error("host 1 fails");
      stream->synchronize();
    });
    ASSERT_EQ(errors, (std::vector<std::string>{"", "host 1 fails", ""})) << "seed " << seed;
  }
}

TEST(SteppedHosts, GoOnWhenOneLeavesWhileTheyWait) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const SteppedDevice bed(seed);
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

TEST(SteppedHosts, SurviveAGateThatThrowsForOneOfThem) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const SteppedDevice bed(seed);
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

TEST(SteppedHosts, ComeInSetsOneAfterTheOther) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const SteppedDevice bed(seed);
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

TEST(SteppedHosts, NeedTheTurn) {
  const SteppedDevice bed(0);
  const auto stream = bed.stream("used by both");
  std::string error;
  const auto errors = run_hosts(bed, 1, [&](int) {
    std::jthread([&] { error = thrown<UsageError>([&] { stream->call("step", [] {}); }); }).join();
  });
  EXPECT_TRUE(contains(error, {"without its turn", "HostTurn"}));
}

TEST(SteppedHosts, HaveIndicesInsideTheSet) {
  const SteppedDevice bed(0);
  for (const int index : {-1, 2, 3}) {
    EXPECT_TRUE(contains(
        thrown<UsageError>([&] { SteppedExecutor::HostTurn turn(*bed.executor, index, 2); }),
        {concat("host ", index, " is not one of 2")}));
  }
}

TEST(SteppedHosts, HaveIndicesOfTheirOwnAndAgreeAboutTheirNumber) {
  const SteppedDevice bed(0);
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
