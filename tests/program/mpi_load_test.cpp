#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <string>

#include <zero3/error.h>
#include "program/mpirun.h"

namespace zero3::test {
namespace {

class MpiLoad : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { skip_without_mpirun(); }
};

TEST_P(MpiLoad, MessagesOfMoreThan31BitsArrive) {
  constexpr double kNeeded = 6.0 * (1 << 30);
  const double available =
      static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (available < kNeeded) GTEST_SKIP() << "needs 6 GiB of free memory";
  const Ended ended = mpirun(2, {ZERO3_RANK_UNDER_LOAD, "large", GetParam()});
  EXPECT_EQ(ended.status, 0) << ended.err;
}

// ZERO3_COLLECTIVES=1000000 for a thorough look.
TEST_P(MpiLoad, ManySmallCollectivesLeaveMemoryFlat) {
  const char* given = std::getenv("ZERO3_COLLECTIVES");
  const Ended ended =
      mpirun(2, {ZERO3_RANK_UNDER_LOAD, "many", given == nullptr ? "5000" : given, GetParam()});
  EXPECT_EQ(ended.status, 0) << ended.err;
  for (const int rank : {0, 1}) {
    const std::string line = line_of(ended.out, concat("rank ", rank, " grew by "));
    ASSERT_NE(line, "") << ended.out;
    EXPECT_LT(std::stoi(line), 1024) << line;
  }
}

INSTANTIATE_TEST_SUITE_P(, MpiLoad, testing::Values("auto", "messages"),
                         [](const auto& test_case) { return std::string(test_case.param); });

}  // namespace
}  // namespace zero3::test
