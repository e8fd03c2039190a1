#include "process/board.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include <zero3/error.h>

namespace zero3::process {
namespace {

collective::Header header_of(std::string label) {
  return {.operation = name_of(CollectiveOp::kReduceScatter),
          .label = std::move(label),
          .bytes = Bytes(6144),
          .dtype = DType::kF32,
          .source_dtype = DType::kBF16,
          .into = Into::kAccumulate,
          .root = 3};
}

Notice notice_of(const collective::Header& header) {
  Notice notice;
  notice.set(header);
  return notice;
}

TEST(Notice, KeepsAHeader) {
  EXPECT_EQ(notice_of(header_of("block.3")).header(), header_of("block.3"));
}

TEST(Notice, KeepsTheBeginningOfALongLabelAndTellsItsEndApart) {
  const std::string label(500, 'x');
  const Notice notice = notice_of(header_of(label + "a"));
  EXPECT_EQ(notice.header().label, label.substr(0, Notice::kLabelBytes - 1));
  EXPECT_TRUE(notice.agrees_with(notice_of(header_of(label + "a"))));
  EXPECT_FALSE(notice.agrees_with(notice_of(header_of(label + "b"))));
}

TEST(Board, AnotherMappingSeesWhatIsWritten) {
  Board board(3);
  Board other(board.path(), 3);
  board.seat(7, 2).progress = 41;
  EXPECT_EQ(other.seat(7, 2).progress, 41U);
  EXPECT_EQ(other.seat(7, 1).progress, 0U);
  EXPECT_EQ(other.seat(6, 2).progress, 0U);
}

TEST(Board, KeepsTheFirstFailure) {
  Board board(2);
  const Board other(board.path(), 2);
  EXPECT_FALSE(other.failure().has_value());
  board.fail({.message = "first", .culprit = 1, .names_operation = true});
  board.fail({.message = "second"});
  ASSERT_TRUE(other.failed());
  EXPECT_EQ(other.failure()->message, "first");
  EXPECT_EQ(other.failure()->culprit, 1);
  EXPECT_TRUE(other.failure()->names_operation);
}

TEST(Board, AFailureTooLongToKeepIsCut) {
  Board board(1);
  board.fail({.message = std::string(100000, 'x')});
  EXPECT_EQ(board.failure()->message.find_first_not_of('x'), std::string::npos);
  EXPECT_GT(board.failure()->message.size(), 1000U);
}

TEST(Board, APathThatIsNoneIsAnError) {
  EXPECT_THROW(Board("/proc/self/fd/none", 2), CommError);
}

TEST(Board, WhoSleepsOnASeatIsWokenThroughAnotherMapping) {
  Board board(1);
  Board other(board.path(), 1);
  const auto begin = std::chrono::steady_clock::now();
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    other.seat(0, 0).progress = 1;
    wake(other.seat(0, 0).progress);
  });
  while (board.seat(0, 0).progress == 0) {
    sleep_on(board.seat(0, 0).progress, 0, std::chrono::seconds(30));
  }
  writer.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace zero3::process
