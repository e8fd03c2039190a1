#include "payload.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <zero3/half.h>

namespace zero3::test {
namespace {

/// Every sign, exponent and upper mantissa, with what lies around the middle between two bf16:
/// subnormal numbers, infinities and NaN among them.
std::vector<float> around_every_bf16() {
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 0x10000U; ++upper) {
    for (const std::uint32_t lower : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  return values;
}

template <class Half>
void expect_rounded(const std::vector<float>& values, std::size_t begin, std::size_t count) {
  const Half untouched(7.0F);
  std::vector<Half> narrowed(count + 1, untouched);
  collective::narrow(narrowed.data(), kDTypeOf<Half>, values.data() + begin,
                     static_cast<std::int64_t>(count));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += narrowed[i] == Half(values[begin + i]) ? 0 : 1;
  EXPECT_EQ(wrong, 0U) << begin << ' ' << count;
  EXPECT_EQ(narrowed.back(), untouched) << begin << ' ' << count;
}

TEST(Payload, NarrowRoundsEveryNumberAsOneIsRounded) {
  const auto values = around_every_bf16();
  expect_rounded<BFloat16>(values, 0, values.size());
  expect_rounded<Float16>(values, 0, values.size());
}

TEST(Payload, NarrowTakesAnyCountFromAnyPlace) {
  const auto values = around_every_bf16();
  for (std::size_t begin = 0; begin < 40; ++begin) {
    for (std::size_t count = 0; count < 100; ++count) {
      // Of them the last normal numbers and infinities lie beside NaN, as zeros beside subnormals.
      expect_rounded<BFloat16>(values, begin, count);
      expect_rounded<BFloat16>(values, 0x7f80U * 6 - begin, count);
    }
  }
}

// What is not kept in the cache takes another way.
TEST(Payload, NarrowOfMuchIsTheSame) {
  const auto few = around_every_bf16();
  std::vector<float> values;
  while (values.size() < (std::size_t{3} << 20))
    values.insert(values.end(), few.begin(), few.end() - 1);
  expect_rounded<BFloat16>(values, 0, values.size());
  expect_rounded<BFloat16>(values, 1, values.size() - 1);
}

template <class Wire>
void expect_left_fold(std::size_t ranks, Into into, std::size_t count) {
  std::vector<std::vector<float>> of_rank(ranks);
  std::vector<const void*> contributions;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < count; ++i) {
      // Sums of these depend on their order.
      const auto mixed = static_cast<float>((i * 7919 + rank * 104'729) % 100'003);
      of_rank[rank].push_back((mixed - 50'000) / 37.0F);
    }
    contributions.push_back(of_rank[rank].data());
  }
  std::vector<float> sum(count, 0.1F), expected(count, 0.1F);
  for (std::size_t i = 0; i < count; ++i) {
    if (into == Into::kReplace) expected[i] = static_cast<float>(Wire(of_rank[0][i]));
    const std::size_t first = into == Into::kReplace ? 1 : 0;
    for (std::size_t rank = first; rank < ranks; ++rank) {
      expected[i] += static_cast<float>(Wire(of_rank[rank][i]));
    }
  }
  collective::fold(sum.data(), contributions, static_cast<std::int64_t>(count),
                   {.wire = kDTypeOf<Wire>, .into = into});
  EXPECT_TRUE(sum == expected) << ranks << ' ' << count;
}

TEST(Payload, FoldAddsFromLeftToRightWhatWasRounded) {
  // The last is written past the cache.
  for (const std::size_t count : {0U, 1U, 2047U, 2049U, 1'100'000U}) {
    for (const std::size_t ranks : {1U, 2U, 3U, 4U, 5U}) {
      for (const Into into : {Into::kReplace, Into::kAccumulate}) {
        expect_left_fold<float>(ranks, into, count);
        expect_left_fold<BFloat16>(ranks, into, count);
        expect_left_fold<Float16>(ranks, into, count);
      }
    }
  }
}

}  // namespace
}  // namespace zero3::test
