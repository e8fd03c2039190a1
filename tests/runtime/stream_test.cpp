#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <numeric>
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
using test::Mode;
using test::OwnDevice;
using test::TestGate;
using test::thrown;

void fail_on(Stream& stream, const std::string& text) {
  stream.call("failing", [text] { throw std::runtime_error(text); });
}

class StreamTest : public ::testing::TestWithParam<Mode> {
 protected:
  OwnDevice own_{GetParam()};
  std::unique_ptr<Stream> a_ = own_.stream("a");
  std::unique_ptr<Stream> b_ = own_.stream("b");
};
INSTANTIATE_TEST_SUITE_P(Executors, StreamTest, ::testing::ValuesIn(test::all_modes()),
                         ::testing::PrintToStringParamName());

TEST_P(StreamTest, RunsOperationsInOrder) {
  std::vector<int> ran;
  for (int i = 0; i < 100; ++i) a_->call("append", [&ran, i] { ran.push_back(i); });
  a_->synchronize();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(ran, expected);
}

TEST_P(StreamTest, WaitOrdersTwoStreams) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::vector<int> ran;
    a_->call("first", [&ran] { ran.push_back(1); });
    b_->wait(a_->record());
    b_->call("second", [&ran] { ran.push_back(2); });
    b_->synchronize();
    ASSERT_EQ(ran, (std::vector{1, 2}));
  }
}

TEST_P(StreamTest, WaitForItsOwnPointGoesOn) {
  a_->wait(a_->record());
  EXPECT_NO_THROW(a_->synchronize());
}

TEST_P(StreamTest, WaitForADefaultEventGoesOn) {
  a_->wait(Event());
  EXPECT_NO_THROW(a_->synchronize());
}

TEST_P(StreamTest, SynchronizeOfAnUnusedStreamReturns) {
  EXPECT_NO_THROW(a_->synchronize());
}

TEST_P(StreamTest, EventIsCompleteAfterSynchronize) {
  a_->call("nothing", [] {});
  const Event event = a_->record();
  a_->synchronize();
  EXPECT_TRUE(event.complete());
}

TEST_P(StreamTest, EventSynchronizeWaitsForWhatIsBefore) {
  bool ran = false;
  a_->call("set", [&ran] { ran = true; });
  a_->record().synchronize();
  EXPECT_TRUE(ran);
}

TEST_P(StreamTest, EventOutlivesStreamAndDevice) {
  Event event;
  {
    const OwnDevice other(GetParam());
    event = other.stream("gone")->record();
  }
  EXPECT_TRUE(event.complete());
  EXPECT_NO_THROW(event.synchronize());
}

TEST_P(StreamTest, DestructionRunsWhatIsLeft) {
  int ran = 0;
  for (int i = 0; i < 20; ++i) b_->call("count", [&ran] { ++ran; });
  b_.reset();
  EXPECT_EQ(ran, 20);
}

TEST_P(StreamTest, DestructionRunsWhatOtherStreamsWaitFor) {
  bool ran = false;
  a_->call("set", [&ran] { ran = true; });
  b_->wait(a_->record());
  a_.reset();
  b_->synchronize();
  EXPECT_TRUE(ran);
}

TEST_P(StreamTest, DestructionWithAnErrorDoesNotThrow) {
  fail_on(*b_, "lost");
  EXPECT_NO_THROW(b_.reset());
}

TEST_P(StreamTest, ReleasesWhatTasksHoldBeforeSynchronizeReturns) {
  auto held = std::make_shared<int>(0);
  a_->call("hold", [held] { ++*held; });
  a_->synchronize();
  EXPECT_EQ(held.use_count(), 1);
}

TEST_P(StreamTest, SynchronizeRethrowsTheFirstError) {
  fail_on(*a_, "first");
  fail_on(*a_, "second");
  EXPECT_EQ(thrown<std::runtime_error>([&] { a_->synchronize(); }), "first");
}

TEST_P(StreamTest, SynchronizeClearsTheError) {
  fail_on(*a_, "first");
  EXPECT_THROW(a_->synchronize(), std::runtime_error);
  bool ran = false;
  a_->call("set", [&ran] { ran = true; });
  EXPECT_NO_THROW(a_->synchronize());
  EXPECT_TRUE(ran);
}

TEST_P(StreamTest, SkipsWhatFollowsAnError) {
  bool ran = false;
  fail_on(*a_, "first");
  a_->call("set", [&ran] { ran = true; });
  EXPECT_THROW(a_->synchronize(), std::runtime_error);
  EXPECT_FALSE(ran);
}

TEST_P(StreamTest, TellsASkippedTaskTheFirstError) {
  std::string text;
  fail_on(*a_, "first");
  internal::enqueue(*a_, {.name = "told",
                          .run = [] {},
                          .skipped =
                              [&text](std::exception_ptr e) {
                                text =
                                    thrown<std::runtime_error>([&] { std::rethrow_exception(e); });
                              }});
  EXPECT_THROW(a_->synchronize(), std::runtime_error);
  EXPECT_EQ(text, "first");
}

TEST_P(StreamTest, KeepsTheFirstErrorWhenASkippedTaskThrows) {
  fail_on(*a_, "first");
  internal::enqueue(*a_,
                    {.name = "worse",
                     .run = [] {},
                     .skipped = [](std::exception_ptr) { throw std::runtime_error("second"); }});
  EXPECT_EQ(thrown<std::runtime_error>([&] { a_->synchronize(); }), "first");
}

TEST_P(StreamTest, ErrorTravelsWithAnEvent) {
  bool ran = false;
  fail_on(*a_, "of a");
  b_->wait(a_->record());
  b_->call("set", [&ran] { ran = true; });
  EXPECT_EQ(thrown<std::runtime_error>([&] { b_->synchronize(); }), "of a");
  EXPECT_FALSE(ran);
}

TEST_P(StreamTest, ErrorTravelsOverSeveralStreams) {
  const auto c = own_.stream("c");
  fail_on(*a_, "of a");
  b_->wait(a_->record());
  c->wait(b_->record());
  EXPECT_EQ(thrown<std::runtime_error>([&] { c->synchronize(); }), "of a");
}

TEST_P(StreamTest, ErrorStaysBehindAnEarlierEvent) {
  const Event before = a_->record();
  fail_on(*a_, "later");
  b_->wait(before);
  EXPECT_NO_THROW(b_->synchronize());
}

TEST_P(StreamTest, ErrorStaysWhereAnEventIsForOrderOnly) {
  fail_on(*a_, "of a");
  b_->wait(a_->record().order_only());
  EXPECT_NO_THROW(b_->synchronize());
}

TEST_P(StreamTest, ErrorIsToldByTheEventToo) {
  fail_on(*a_, "of a");
  const Event event = a_->record();
  EXPECT_EQ(thrown<std::runtime_error>([&] { event.synchronize(); }), "of a");
  EXPECT_EQ(thrown<std::runtime_error>([&] { a_->synchronize(); }), "of a");
}

TEST_P(StreamTest, FailsWhenAGateThrows) {
  const auto gate = std::make_shared<TestGate>();
  gate->fail(std::make_exception_ptr(std::runtime_error("of the gate")));
  bool ran = false;
  internal::enqueue(*a_, {.name = "gated", .run = [&ran] { ran = true; }, .gate = gate});
  EXPECT_EQ(thrown<std::runtime_error>([&] { a_->synchronize(); }), "of the gate");
  EXPECT_FALSE(ran);
}

TEST_P(StreamTest, TellsTheTaskWhoseGateThrows) {
  const auto gate = std::make_shared<TestGate>();
  gate->fail(std::make_exception_ptr(std::runtime_error("of the gate")));
  bool told = false;
  internal::enqueue(
      *a_,
      {.name = "gated", .run = [] {}, .gate = gate, .skipped = [&told](auto) { told = true; }});
  EXPECT_THROW(a_->synchronize(), std::runtime_error);
  EXPECT_TRUE(told);
}

TEST_P(StreamTest, StillWaitsForGatesAfterAnError) {
  // What waits for a later point of this stream may free memory that the gate's side still uses.
  const auto gate = std::make_shared<TestGate>();
  fail_on(*a_, "of a");
  internal::enqueue(*a_, {.name = "gated", .run = nullptr, .gate = gate});
  const Event after = a_->record();
  bool open_when_passed = false;
  b_->wait(after.order_only());
  b_->call("look", [&] { open_when_passed = gate->open(); });
  gate->let_pass();
  b_->synchronize();
  EXPECT_TRUE(open_when_passed);
}

TEST_P(StreamTest, TaskWithoutRunOnlyWaits) {
  const auto gate = std::make_shared<TestGate>();
  gate->let_pass();
  internal::enqueue(*a_, {.name = "gate alone", .run = nullptr, .gate = gate});
  EXPECT_NO_THROW(a_->synchronize());
}

TEST_P(StreamTest, RefusesToBeUsedByAnOperation) {
  a_->call("nested", [this] { b_->call("inner", [] {}); });
  EXPECT_TRUE(contains(thrown<UsageError>([&] { a_->synchronize(); }), {"enqueues on stream 'b'"}));
}

TEST_P(StreamTest, RefusesToBeAwaitedByAnOperation) {
  const auto gate = std::make_shared<TestGate>();
  internal::enqueue(*b_, {.name = "gated", .run = nullptr, .gate = gate});
  const Event event = b_->record();
  a_->call("nested", [event] { event.synchronize(); });
  EXPECT_TRUE(contains(thrown<UsageError>([&] { a_->synchronize(); }), {"waits", "stream 'b'"}));
  gate->let_pass();
}

TEST_P(StreamTest, TellsTasksTheirThreads) {
  const auto wide = own_.stream("wide", 3);
  int inside = 0;
  wide->call("look", [&inside] { inside = internal::current_threads(); });
  wide->synchronize();
  EXPECT_EQ(inside, 3);
  EXPECT_EQ(internal::current_threads(), 1);
}

TEST_P(StreamTest, NeedsAThread) {
  EXPECT_TRUE(contains(thrown<UsageError>([&] { static_cast<void>(own_.stream("none", 0)); }),
                       {"'none'", "0 threads"}));
}

TEST_P(StreamTest, KnowsItsNameAndDevice) {
  EXPECT_EQ(a_->name(), "a");
  EXPECT_EQ(&a_->device(), own_.device.get());
  EXPECT_EQ(&a_->native(), a_.get());
}

TEST_P(StreamTest, HasAnIdOfItsOwn) {
  EXPECT_NE(a_->id(), b_->id());
}

TEST(Stream, WaitsForTheThreadedStreamOfAnotherDevice) {
  const OwnDevice one{Mode{}};
  const OwnDevice other{Mode{}};
  const auto first = one.stream("first");
  const auto second = other.stream("second");
  std::vector<int> ran;
  first->call("first", [&ran] { ran.push_back(1); });
  second->wait(first->record());
  second->call("second", [&ran] { ran.push_back(2); });
  second->synchronize();
  EXPECT_EQ(ran, (std::vector{1, 2}));
}

TEST(Stream, RefusesThePointOfAnotherSteppedExecutor) {
  const OwnDevice one{Mode{0}};
  const OwnDevice other{Mode{0}};
  const auto first = one.stream("first");
  const auto second = other.stream("second");
  const Event event = first->record();  // with seed 0 it has not passed yet
  EXPECT_TRUE(contains(thrown<UsageError>([&] { second->wait(event); }), {"'first'", "'second'"}));
}

TEST(Stream, TakesAPointOfAnotherExecutorThatHasPassed) {
  const OwnDevice one{Mode{0}};
  const OwnDevice other{Mode{}};
  const auto first = one.stream("first");
  const auto second = other.stream("second");
  const Event event = first->record();
  first->synchronize();
  second->wait(event);
  EXPECT_NO_THROW(second->synchronize());
}

TEST(Stream, DoesNotWaitForTheDeviceWhenEnqueueing) {
  const OwnDevice own{Mode{}};
  const auto stream = own.stream("held");
  std::promise<void> release;
  stream->call("hold", [held = release.get_future().share()] { held.wait(); });
  const Event event = stream->record();
  EXPECT_FALSE(event.complete());
  release.set_value();
  stream->synchronize();
}

TEST(Stream, EventPassesBeforeWhatFollowsIt) {
  const OwnDevice own{Mode{}};
  const auto stream = own.stream("held");
  const Event event = stream->record();
  std::promise<void> release;
  stream->call("hold", [held = release.get_future().share()] { held.wait(); });
  EXPECT_NO_THROW(event.synchronize());
  release.set_value();
}

TEST(Stream, HoldsBackWhatWaits) {
  const OwnDevice own{Mode{}};
  const auto first = own.stream("first");
  const auto second = own.stream("second");
  std::promise<void> release;
  std::vector<int> ran;
  first->call("hold", [&ran, held = release.get_future().share()] {
    held.wait();
    ran.push_back(1);
  });
  second->wait(first->record());
  second->call("after", [&ran] { ran.push_back(2); });
  EXPECT_FALSE(second->record().complete());
  release.set_value();
  second->synchronize();
  EXPECT_EQ(ran, (std::vector{1, 2}));
}

}  // namespace
}  // namespace zero3
