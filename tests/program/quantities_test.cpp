#include "quantities.h"

#include <gtest/gtest.h>

#include <zero3/error.h>

namespace zero3::program {
namespace {

TEST(ParseSize, TakesPowersOf1024) {
  EXPECT_EQ(parse_size("4096"), 4096);
  EXPECT_EQ(parse_size("64K"), 65536);
  EXPECT_EQ(parse_size("64KiB"), 65536);
  EXPECT_EQ(parse_size("2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_size("1T"), std::int64_t{1} << 40);
  EXPECT_EQ(parse_size("0"), 0);
}

TEST(ParseSize, TakesFractionsThatAreWholeBytes) {
  EXPECT_EQ(parse_size("1.5K"), 1536);
  EXPECT_THROW(static_cast<void>(parse_size("1.5")), UsageError);
}

TEST(ParseSize, RefusesWhatIsNoSize) {
  for (const char* text :
       {"", "K", "-1", "1KB", "1 K", "1k", "inf", "nan", "0x10", "1e30", "9000000T"}) {
    EXPECT_THROW(static_cast<void>(parse_size(text)), UsageError) << text;
  }
}

TEST(ParseDuration, TakesUnits) {
  EXPECT_EQ(parse_duration("250ms").count(), 250);
  EXPECT_EQ(parse_duration("30s").count(), 30000);
  EXPECT_EQ(parse_duration("30").count(), 30000);
  EXPECT_EQ(parse_duration("5min").count(), 300000);
  EXPECT_EQ(parse_duration("0.5h").count(), 1800000);
}

TEST(ParseDuration, RefusesWhatIsNoDuration) {
  for (const char* text : {"", "s", "-1s", "5m", "5 s"}) {
    EXPECT_THROW(static_cast<void>(parse_duration(text)), UsageError) << text;
  }
}

TEST(ParseCount, TakesSuffixesAndItsRange) {
  EXPECT_EQ(parse_count("16K", 1, 16384), 16384);
  EXPECT_THROW(static_cast<void>(parse_count("16K", 1, 16383)), UsageError);
  EXPECT_THROW(static_cast<void>(parse_count("0", 1, 10)), UsageError);
}

TEST(ParseCount, KeepsSixtyThreeBits) {
  EXPECT_EQ(parse_count("9223372036854775807", 0, INT64_MAX), INT64_MAX);
  EXPECT_THROW(static_cast<void>(parse_count("9223372036854775808", 0, INT64_MAX)), UsageError);
}

TEST(ParseNumber, TakesItsHalfOpenRange) {
  EXPECT_EQ(parse_number_in("1e-3", 0, 1), 1e-3);
  EXPECT_EQ(parse_number_in("0", 0, 1), 0);
  for (const char* text : {"1", "-0.1", "nan", "inf", "", "0.5x"}) {
    EXPECT_THROW(static_cast<void>(parse_number_in(text, 0, 1)), UsageError) << text;
  }
}

TEST(Counted, HasAPluralButForOne) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(2, "rank"), "2 ranks");
}

}  // namespace
}  // namespace zero3::program
