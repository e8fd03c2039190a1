#include <zero3/shard_layout.h>

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace zero3::test {
namespace {

static_assert(shard_size(Elements(0), 1) == Elements(0));
static_assert(shard_size(Elements(0), 7) == Elements(0));
static_assert(shard_size(Elements(1), 1) == Elements(1024));
static_assert(shard_size(Elements(1), 4) == Elements(1024));
static_assert(shard_size(Elements(1024), 1) == Elements(1024));
static_assert(shard_size(Elements(1025), 1) == Elements(2048));
static_assert(shard_size(Elements(3 * 1024 - 1), 3) == Elements(1024));
static_assert(shard_size(Elements(3 * 1024), 3) == Elements(1024));
static_assert(shard_size(Elements(3 * 1024 + 1), 3) == Elements(2048));
static_assert(shard_size(Elements(std::int64_t{1} << 40), 8) == Elements(std::int64_t{1} << 37));

static_assert(shard_range(Elements(2049), 0, 2) == ElementRange{Elements(0), Elements(2048)});
static_assert(shard_range(Elements(2049), 1, 2) == ElementRange{Elements(2048), Elements(4096)});

static_assert(intersect({Elements(0), Elements(8)}, {Elements(5), Elements(9)}) ==
              ElementRange{Elements(5), Elements(8)});
static_assert(intersect({Elements(0), Elements(2)}, {Elements(5), Elements(9)}).size() ==
              Elements(0));

ParamSpec param_of(std::vector<std::int64_t> shape) {
  return {.name = "p", .shape = std::move(shape)};
}

TEST(ParamSpec, SizeIsTheProductOfTheExtents) {
  EXPECT_EQ(param_of({7, 4}).size(), Elements(28));
}
TEST(ParamSpec, ScalarHasOneElement) {
  EXPECT_EQ(param_of({}).size(), Elements(1));
}
TEST(ParamSpec, ExtentZeroMakesNoElements) {
  EXPECT_EQ(param_of({5, 0, 3}).size(), Elements(0));
}
TEST(ParamSpec, SizeNeeds64Bits) {
  EXPECT_EQ(param_of({70000, 70000}).size(), Elements(4900000000));
}

TEST(ShardLayout, ParametersStartAtMultiplesOf64BytesInBf16) {
  const GroupLayout layout = make_layout(
      {.name = "g", .params = {param_of({5}), param_of({33}), param_of({1})}}, DType::kBF16, 1);
  const std::vector<Elements> want = {Elements(0), Elements(32), Elements(96)};
  EXPECT_EQ(layout.sub_groups.at(0).offsets, want);
}

TEST(ShardLayout, SizeEndsWithTheLastParameter) {
  const GroupLayout layout =
      make_layout({.name = "g", .params = {param_of({5}), param_of({33})}}, DType::kF32, 1);
  EXPECT_EQ(layout.sub_groups.at(0).size, Elements(32 + 33));
}

// B3: in front, inside and at the end.
TEST(ShardLayout, EmptyParametersTakeNoElements) {
  const GroupLayout layout = make_layout(
      {.name = "g",
       .params = {param_of({0}), param_of({32}), param_of({3, 0}), param_of({7}), param_of({0})}},
      DType::kF32, 2);
  EXPECT_EQ(layout.sub_groups.at(0).size, Elements(64));
  EXPECT_EQ(layout.places.at(3).offset, Elements(32));
}

TEST(ShardLayout, GroupWithoutParametersHasNoSubGroups) {
  EXPECT_TRUE(make_layout({}, DType::kF32, 3).sub_groups.empty());
}

// C7
TEST(ShardLayout, DtypeAndTrainabilityMakeSubGroups) {
  ParamSpec norm = param_of({8});
  norm.dtype = DType::kF32;
  ParamSpec frozen = param_of({9});
  frozen.trainable = false;
  const GroupLayout layout =
      make_layout({.name = "g", .params = {param_of({16}), norm, frozen, param_of({4}), norm}},
                  DType::kBF16, 1);
  ASSERT_EQ(layout.sub_groups.size(), 3U);
  EXPECT_EQ(layout.sub_groups[0].params, (std::vector<int>{0, 3}));
  EXPECT_EQ(layout.sub_groups[1].params, (std::vector<int>{1, 4}));
  EXPECT_EQ(layout.sub_groups[2].params, (std::vector<int>{2}));
  EXPECT_EQ(layout.sub_groups[1].dtype, DType::kF32);
  EXPECT_FALSE(layout.sub_groups[2].trainable);
}

TEST(ShardLayout, LayoutWithinTheFlatBufferDoesNotDependOnTheWorldSize) {
  const GroupSpec group{.name = "g", .params = {param_of({513}), param_of({2000}), param_of({7})}};
  const GroupLayout one = make_layout(group, DType::kF32, 1);
  const GroupLayout seven = make_layout(group, DType::kF32, 7);
  EXPECT_EQ(one.sub_groups.at(0).offsets, seven.sub_groups.at(0).offsets);
}

TEST(ShardLayout, LastRanksMayBeAllPadding) {
  const SubGroupLayout sub =
      make_layout({.name = "g", .params = {param_of({6})}}, DType::kF32, 4).sub_groups.at(0);
  EXPECT_EQ(sub.part(0, Elements(6), 0).size, Elements(6));
  for (const int rank : {1, 2, 3}) EXPECT_EQ(sub.part(0, Elements(6), rank).size, Elements(0));
}

TEST(ShardLayout, PartSaysWhereItLiesInShardAndParameter) {
  const SubGroupLayout sub =
      make_layout({.name = "g", .params = {param_of({1000}), param_of({1100})}}, DType::kF32, 2)
          .sub_groups.at(0);
  // The second parameter begins at 1024 - 0: shards have 2048 elements.
  const ParamPart first = sub.part(1, Elements(1100), 0);
  const ParamPart second = sub.part(1, Elements(1100), 1);
  EXPECT_EQ(first.in_shard, Elements(1024));
  EXPECT_EQ(first.in_param, Elements(0));
  EXPECT_EQ(first.size, Elements(1024));
  EXPECT_EQ(second.in_shard, Elements(0));
  EXPECT_EQ(second.in_param, Elements(1024));
  EXPECT_EQ(second.size, Elements(76));
}

// B2, B9: whatever the shapes, the parts of all ranks are the parameter.
TEST(ShardLayout, PartsOfAllRanksMakeUpEveryParameter) {
  std::mt19937 random(7);
  const std::vector<std::int64_t> sizes = {0, 1, 2, 3, 5, 31, 32, 33, 1023, 1024, 1025, 4099};
  for (int round = 0; round < 300; ++round) {
    GroupSpec group;
    const auto count = random() % 6;
    for (std::size_t i = 0; i < count; ++i) {
      group.params.push_back(param_of({sizes[random() % sizes.size()]}));
      group.params.back().trainable = random() % 4 != 0;
    }
    const int world_size = static_cast<int>(random() % 8) + 1;
    const GroupLayout layout = make_layout(group, DType::kF32, world_size);
    for (const SubGroupLayout& sub : layout.sub_groups) {
      for (std::size_t i = 0; i < sub.params.size(); ++i) {
        const Elements size = group.params[static_cast<std::size_t>(sub.params[i])].size();
        Elements next;
        for (int rank = 0; rank < world_size; ++rank) {
          const ParamPart part = sub.part(i, size, rank);
          if (part.size == Elements(0)) continue;
          EXPECT_EQ(part.in_param, next);
          EXPECT_EQ(sub.shard * rank + part.in_shard, sub.offsets[i] + part.in_param);
          EXPECT_LE(part.in_shard + part.size, sub.shard);
          next = part.in_param + part.size;
        }
        EXPECT_EQ(next, size);
      }
    }
  }
}

}  // namespace
}  // namespace zero3::test
