#include <zero3/tile_policy.h>

#include <gtest/gtest.h>

#include "support/contains.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

constexpr TokenShape kTokens = {.batch = 2, .seq = 1000};

std::int64_t rows_of(const char* policy, TokenShape tokens = kTokens, std::int64_t hidden = 128) {
  return tile_rows(parse_tile_policy(policy), tokens, hidden, 16);
}

TEST(TilePolicy, RoundsUpToWholeGranules) {
  EXPECT_EQ(rows_of("none"), 2000);
  EXPECT_EQ(rows_of("auto"), 1024);
  EXPECT_EQ(rows_of("rows=1"), 16);
  EXPECT_EQ(rows_of("rows=256"), 256);
  EXPECT_EQ(rows_of("rows=257"), 272);
  EXPECT_EQ(rows_of("rows=100000"), 2000);
  EXPECT_EQ(rows_of("count=7"), 288);  // 2000 / 7 = 285.7
  EXPECT_EQ(rows_of("count=2000"), 16);
  EXPECT_EQ(rows_of("seq/hidden"), 256);  // 8 tiles of 250
}

TEST(TilePolicy, FewRowsAreOneTile) {
  for (const char* policy : {"auto", "none", "rows=64", "count=1", "seq/hidden"}) {
    EXPECT_EQ(rows_of(policy, {.batch = 1, .seq = 5}), 5) << policy;
    EXPECT_EQ(rows_of(policy, {.batch = 0, .seq = 5}), 0) << policy;
    EXPECT_EQ(tile_count(parse_tile_policy(policy), {.batch = 1, .seq = 5}, 128, 16), 1) << policy;
    EXPECT_EQ(tile_count(parse_tile_policy(policy), {.batch = 0, .seq = 5}, 128, 16), 0) << policy;
  }
}

// H9: a count that does not divide the rows still gives tiles, only fewer of them.
TEST(TilePolicy, ACountThatDoesNotDivideGivesNoEmptyTile) {
  const auto tiles = [](std::int64_t rows, std::int64_t count) {
    return tile_count({.kind = TilePolicy::Kind::kCount, .value = count}, {.batch = 1, .seq = rows},
                      128, 1);
  };
  EXPECT_EQ(tiles(256, 25), 24);
  EXPECT_EQ(tiles(5, 4), 3);
  EXPECT_EQ(tiles(256, 256), 256);
}

TEST(TilePolicy, NamesAreThoseThatAreParsed) {
  for (const char* name : {"auto", "none", "rows=256", "count=7", "seq/hidden"}) {
    EXPECT_EQ(name_of(parse_tile_policy(name)), name);
  }
}

TEST(TilePolicy, RefusesWhatItCannotDo) {
  for (const char* name :
       {"", "8", "rows=", "rows=0", "rows=-1", "count=1.5", "rows=5x", "tiles"}) {
    EXPECT_TRUE(contains(usage_error([&] { static_cast<void>(parse_tile_policy(name)); }),
                         {"rows=R, count=N"}))
        << name;
  }
  EXPECT_TRUE(contains(usage_error([] { static_cast<void>(rows_of("count=2001")); }),
                       {"2001 tiles", "2000 rows"}));
}

}  // namespace
}  // namespace zero3::test
