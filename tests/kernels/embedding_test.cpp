#include <zero3/embedding.h>

#include <gtest/gtest.h>

#include <support/contains.h>
#include <support/thrown.h>

#include "values.h"

namespace zero3::test {
namespace {

template <class T>
std::vector<T> look_up(Bench& bench, const std::vector<T>& table,
                       const std::vector<std::int32_t>& tokens, const EmbeddingShape& shape) {
  const Buffer t = bench.upload(table), index = bench.upload(tokens);
  const Buffer out = bench.allocate(shape.rows * shape.width, kDTypeOf<T>);
  embedding_forward(out.view(), t.view(), index.view(), shape, *bench.stream);
  return bench.download<T>(out.view());
}

template <class T>
std::vector<float> add_gradient(Bench& bench, const std::vector<float>& d_table,
                                const std::vector<T>& d_out,
                                const std::vector<std::int32_t>& tokens,
                                const EmbeddingShape& shape) {
  const Buffer to = bench.upload(d_table), from = bench.upload(d_out);
  const Buffer index = bench.upload(tokens);
  embedding_backward(to.view(), from.view(), index.view(), shape, *bench.stream);
  return bench.download<float>(to.view());
}

/// The header's sum, row after row.
template <class T>
std::vector<float> scalar_gradient(std::vector<float> d_table, const std::vector<T>& d_out,
                                   const std::vector<std::int32_t>& tokens,
                                   const EmbeddingShape& shape) {
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const std::int64_t to = tokens[static_cast<std::size_t>(row)] * shape.width;
    for (std::int64_t i = 0; i < shape.width; ++i) {
      d_table[static_cast<std::size_t>(to + i)] +=
          static_cast<float>(d_out[static_cast<std::size_t>(row * shape.width + i)]);
    }
  }
  return d_table;
}

constexpr std::int64_t kWidths[] = {1, 7, 8, 9, 127, 128, 129, 384};

TEST(Embedding, ForwardCopiesTheRowsOfItsTokens) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t width : kWidths) {
    const EmbeddingShape shape = {.rows = 37, .width = width, .vocab = 11};
    const auto table = convert<BFloat16>(normal_values(11 * width, 1));
    const auto tokens = index_values(37, 2, 11);
    std::vector<BFloat16> want;
    for (const std::int32_t token : tokens) {
      const auto row = table.begin() + token * width;
      want.insert(want.end(), row, row + width);
    }
    EXPECT_EQ(bits_of(look_up(bench, table, tokens, shape)), bits_of(want)) << width;
  }
}

TEST(Embedding, BackwardAddsInAscendingOrderOfRows) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t width : kWidths) {
    const EmbeddingShape shape = {.rows = 97, .width = width, .vocab = 5};
    const auto before = normal_values(5 * width, 1), d_out = normal_values(97 * width, 2);
    const auto tokens = index_values(97, 3, 5);
    EXPECT_EQ(bits_of(add_gradient(bench, before, d_out, tokens, shape)),
              bits_of(scalar_gradient(before, d_out, tokens, shape)))
        << width;
  }
}

TEST(Embedding, BackwardTakesBf16) {
  Bench bench;
  const EmbeddingShape shape = {.rows = 20, .width = 33, .vocab = 5};
  const auto before = normal_values(5 * 33, 1);
  const auto d_out = convert<BFloat16>(normal_values(20 * 33, 2));
  const auto tokens = index_values(20, 3, 5);
  EXPECT_EQ(bits_of(add_gradient(bench, before, d_out, tokens, shape)),
            bits_of(scalar_gradient(before, d_out, tokens, shape)));
}

TEST(Embedding, NoRowsAreNoWork) {
  Bench bench;
  const EmbeddingShape shape = {.rows = 0, .width = 3, .vocab = 2};
  const auto table = normal_values(6, 1);
  EXPECT_TRUE(look_up(bench, table, {}, shape).empty());
  EXPECT_EQ(add_gradient(bench, table, std::vector<float>(), {}, shape), table);
}

TEST(Embedding, SameBitsForAnyThreads) {
  const EmbeddingShape shape = {.rows = 300, .width = 500, .vocab = 7};
  expect_same_bits_for_any_threads([&](Bench& bench) {
    return add_gradient(bench, normal_values(7 * 500, 1), normal_values(300 * 500, 2),
                        index_values(300, 3, 7), shape);
  });
}

TEST(Embedding, SameBitsOnEveryDevice) {
  const EmbeddingShape shape = {.rows = 30, .width = 33, .vocab = 7};
  expect_same_bits_on_every_device([&](Bench& bench) {
    return add_gradient(bench, normal_values(7 * 33, 1), normal_values(30 * 33, 2),
                        index_values(30, 3, 7), shape);
  });
}

TEST(Embedding, TheFirstTokenOutsideTheTableIsNamed) {
  for (const int threads : {1, 2}) {
    Bench bench(DeviceKind::kCpu, threads);
    std::vector<std::int32_t> tokens = index_values(40, 3, 7);
    tokens[23] = 7;
    tokens[31] = -1;
    const EmbeddingShape shape = {.rows = 40, .width = 3, .vocab = 7};
    const auto forward =
        thrown<UsageError>([&] { look_up(bench, normal_values(21, 1), tokens, shape); });
    EXPECT_TRUE(contains(forward, {"embedding_forward", "row 23", "token 7"}));
    const auto backward = thrown<UsageError>(
        [&] { add_gradient(bench, normal_values(21, 1), normal_values(120, 2), tokens, shape); });
    EXPECT_TRUE(contains(backward, {"embedding_backward", "row 23", "token 7"}));
  }
}

TEST(Embedding, NegativeTokensAreRefused) {
  Bench bench;
  const auto error = thrown<UsageError>([&] {
    look_up(bench, normal_values(21, 1), {0, -1}, {.rows = 2, .width = 3, .vocab = 7});
  });
  EXPECT_TRUE(contains(error, {"row 1", "-1"}));
}

TEST(Embedding, RefusesSizesThatDoNotFit) {
  Bench bench;
  const auto error = thrown<UsageError>([&] {
    look_up(bench, normal_values(20, 1), {0, 1}, {.rows = 2, .width = 3, .vocab = 7});
  });
  EXPECT_TRUE(contains(error, {"embedding_forward", "table", "20", "21"}));
}

}  // namespace
}  // namespace zero3::test
