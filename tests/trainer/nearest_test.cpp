#include <zero3/trainer/nearest.h>

#include <gtest/gtest.h>

namespace zero3::trainer {
namespace {

TEST(Nearest, FindsTheNameThatWasMeant) {
  EXPECT_EQ(nearest("--bacth", {"--steps", "--batch", "--data"}), "--batch");
  EXPECT_EQ(nearest("cosin", {"constant", "linear", "cosine"}), "cosine");
}

TEST(Nearest, TakesTheFirstOfEquals) {
  EXPECT_EQ(nearest("ab", {"ax", "ay"}), "ax");
}

TEST(Nearest, IsEmptyWithoutCandidates) {
  EXPECT_EQ(nearest("ab", {}), "");
}

TEST(Nearest, CountsInsertionsDeletionsAndReplacements) {
  EXPECT_EQ(nearest("kitten", {"sittingly", "sitting", "mittens!!"}), "sitting");
  EXPECT_EQ(nearest("", {"abc", "a"}), "a");
}

}  // namespace
}  // namespace zero3::trainer
