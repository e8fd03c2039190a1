#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <zero3/log.h>

namespace zero3 {
namespace {

template <class Write>
std::string on_stderr(Write&& write) {
  ::testing::internal::CaptureStderr();
  write();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, WritesALineWithTheRank) {
  EXPECT_EQ(on_stderr([] { Log(2).error("what is wrong"); }), "zero3: [rank 2] what is wrong\n");
}

TEST(Log, TakesTextAsItIs) {
  EXPECT_EQ(on_stderr([] { Log(0).error("100% {} %v"); }), "zero3: [rank 0] 100% {} %v\n");
}

TEST(Log, LeavesOutWhatIsBelowItsLevel) {
  const std::vector<std::pair<LogLevel, std::string>> cases = {{LogLevel::kError, "e"},
                                                               {LogLevel::kWarn, "ew"},
                                                               {LogLevel::kInfo, "ewi"},
                                                               {LogLevel::kDebug, "ewid"}};
  for (const auto& [level, expected] : cases) {
    const std::string lines = on_stderr([level = level] {
      const Log log(0, level);
      log.error("e");
      log.warn("w");
      log.info("i");
      log.debug("d");
    });
    std::string letters;
    for (std::size_t i = 1; i < lines.size(); ++i) {
      if (lines[i] == '\n') letters += lines[i - 1];
    }
    EXPECT_EQ(letters, expected);
  }
}

TEST(Log, WritesWholeLinesFromSeveralThreads) {
  const std::string lines = on_stderr([] {
    const Log log(0);
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&log] {
        for (int k = 0; k < 50; ++k) log.warn("line");
      });
    }
  });
  std::string expected;
  for (int i = 0; i < 200; ++i) expected += "zero3: [rank 0] line\n";
  EXPECT_EQ(lines, expected);
}

TEST(Log, MovesWithItsRank) {
  EXPECT_EQ(on_stderr([] {
              Log first(3);
              const Log second = std::move(first);
              second.warn("moved");
            }),
            "zero3: [rank 3] moved\n");
}

}  // namespace
}  // namespace zero3
