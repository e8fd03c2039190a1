#include <zero3/lr_schedule.h>

#include <gtest/gtest.h>

#include <zero3/error.h>
#include "support/contains.h"
#include "support/thrown.h"

namespace zero3::test {
namespace {

using Kind = LrSchedule::Kind;

LrSchedule schedule(Kind kind) {
  return {.kind = kind, .peak = 1.0, .minimum = 0.1, .warmup = 4, .steps = 15};
}

TEST(LrSchedule, WarmupIsLinearAndReachesThePeakWithItsLastStep) {
  for (const Kind kind : {Kind::kConstant, Kind::kLinear, Kind::kCosine}) {
    EXPECT_DOUBLE_EQ(schedule(kind).at(0), 0.25);
    EXPECT_DOUBLE_EQ(schedule(kind).at(3), 1.0);
  }
}
TEST(LrSchedule, WithoutWarmupTheFirstStepHasThePeak) {
  EXPECT_DOUBLE_EQ((LrSchedule{.kind = Kind::kCosine, .peak = 2.0, .steps = 10}.at(0)), 2.0);
}
TEST(LrSchedule, ConstantStaysAtThePeak) {
  EXPECT_DOUBLE_EQ(schedule(Kind::kConstant).at(14), 1.0);
}
TEST(LrSchedule, DecayBeginsAtThePeak) {
  EXPECT_DOUBLE_EQ(schedule(Kind::kLinear).at(4), 1.0);
  EXPECT_DOUBLE_EQ(schedule(Kind::kCosine).at(4), 1.0);
}
TEST(LrSchedule, LastStepHasTheMinimum) {
  EXPECT_DOUBLE_EQ(schedule(Kind::kLinear).at(14), 0.1);
  EXPECT_DOUBLE_EQ(schedule(Kind::kCosine).at(14), 0.1);
}
TEST(LrSchedule, HalfWayBothDecaysAreHalfWay) {
  EXPECT_DOUBLE_EQ(schedule(Kind::kLinear).at(9), 0.55);
  EXPECT_DOUBLE_EQ(schedule(Kind::kCosine).at(9), 0.55);
}
TEST(LrSchedule, ACosineFallsSlowlyAtFirst) {
  EXPECT_GT(schedule(Kind::kCosine).at(5), schedule(Kind::kLinear).at(5));
}
TEST(LrSchedule, StepsBeyondTheLastStayAtTheMinimum) {
  EXPECT_DOUBLE_EQ(schedule(Kind::kLinear).at(1000), 0.1);
  EXPECT_DOUBLE_EQ(schedule(Kind::kCosine).at(1000), 0.1);
}
TEST(LrSchedule, ARunOfOneStepHasThePeak) {
  EXPECT_DOUBLE_EQ((LrSchedule{.kind = Kind::kLinear, .peak = 3.0, .steps = 1}.at(0)), 3.0);
}
TEST(LrSchedule, ARunThatIsAllWarmupNeverExceedsThePeak) {
  const LrSchedule all{.kind = Kind::kCosine, .peak = 1.0, .warmup = 8, .steps = 8};
  for (std::int64_t step = 0; step < 8; ++step) EXPECT_LE(all.at(step), 1.0);
}

TEST(LrSchedule, NamesAreParsed) {
  EXPECT_EQ(parse_lr_schedule("constant"), Kind::kConstant);
  EXPECT_EQ(parse_lr_schedule("linear"), Kind::kLinear);
  EXPECT_EQ(parse_lr_schedule("cosine"), Kind::kCosine);
}
TEST(LrSchedule, AnUnknownNameIsRefusedWithTheList) {
  EXPECT_TRUE(contains(thrown<UsageError>([] { static_cast<void>(parse_lr_schedule("cos")); }),
                       {"'cos'", "constant, linear, cosine"}));
}

}  // namespace
}  // namespace zero3::test
