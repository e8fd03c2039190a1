#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <zero3/error.h>
#include <zero3/trainer/token_data.h>
#include "support/contains.h"
#include "support/temp_dir.h"
#include "support/thrown.h"

namespace zero3::trainer {
namespace {

using test::contains;
using test::TempDir;
using test::thrown;

/// A file in the NumPy format: its header as given, padded to 64 bytes as numpy.save does, and
/// `data`.
template <class T>
std::string npy(const std::string& descr, const std::string& shape, const std::vector<T>& data,
                const std::string& order = "False", char major = 1) {
  std::string header =
      "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  const std::size_t prefix = major == 1 ? 10 : 12;
  while ((prefix + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string file = std::string("\x93NUMPY", 6) + major + '\0';
  for (std::size_t i = 0; i < prefix - 8; ++i)
    file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  file += header;
  return file + std::string(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(T));
}

template <class T>
std::string npy_of(const std::string& descr, const std::vector<T>& data) {
  return npy(descr, "(" + std::to_string(data.size()) + ",)", data);
}

std::vector<std::int32_t> read_all(const TokenFile& file) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(file.size()));
  file.read(0, tokens);
  return tokens;
}

std::string refusal(const std::string& name, const std::string& content) {
  const TempDir dir;
  return thrown<UsageError>([&] { const TokenFile file(dir.write(name, content)); });
}

TEST(TokenFile, BytesOfATextAreTokens) {
  const TempDir dir;
  const TokenFile file(dir.write("text.txt", std::string("a\0\xff", 3)));
  EXPECT_EQ(read_all(file), (std::vector<std::int32_t>{97, 0, 255}));
}

template <class T>
class NpyDtypes : public ::testing::Test {};
template <class T>
const char* kDescr = "";
template <>
const char* kDescr<std::uint8_t> = "|u1";
template <>
const char* kDescr<std::uint16_t> = "<u2";
template <>
const char* kDescr<std::int32_t> = "<i4";
template <>
const char* kDescr<std::uint32_t> = "<u4";
template <>
const char* kDescr<std::int64_t> = "<i8";
using TokenTypes =
    ::testing::Types<std::uint8_t, std::uint16_t, std::int32_t, std::uint32_t, std::int64_t>;
TYPED_TEST_SUITE(NpyDtypes, TokenTypes);

TYPED_TEST(NpyDtypes, AreRead) {
  const TempDir dir;
  const std::vector<TypeParam> tokens = {0, 1, 100, 127};
  const TokenFile file(dir.write("tokens.npy", npy_of(kDescr<TypeParam>, tokens)));
  EXPECT_EQ(read_all(file), (std::vector<std::int32_t>{0, 1, 100, 127}));
}

TEST(NpyFile, FormatVersionTwoIsRead) {
  const TempDir dir;
  const TokenFile file(dir.write("a.npy", npy<std::uint16_t>("<u2", "(2,)", {3, 4}, "False", 2)));
  EXPECT_EQ(read_all(file), (std::vector<std::int32_t>{3, 4}));
}

TEST(NpyFile, IsRecognisedWithoutItsSuffix) {
  const TempDir dir;
  const TokenFile file(dir.write("tokens.bin", npy_of<std::uint16_t>("<u2", {300})));
  EXPECT_EQ(read_all(file), (std::vector<std::int32_t>{300}));
}

TEST(NpyFile, OneDimensionInFortranOrderIsTheSameArray) {
  const TempDir dir;
  const TokenFile file(dir.write("a.npy", npy<std::uint8_t>("|u1", "(2,)", {5, 6}, "True")));
  EXPECT_EQ(file.size(), 2);
}

TEST(NpyFile, FloatsAreRefusedWithDtypeAndShape) {
  EXPECT_TRUE(contains(refusal("a.npy", npy_of<float>("<f4", {1, 2})),
                       {"a.npy", "'<f4'", "(2,)", "floating-point"}));
}

TEST(NpyFile, TwoDimensionsAreRefusedWithTheShape) {
  EXPECT_TRUE(contains(refusal("a.npy", npy<std::uint16_t>("<u2", "(2, 3)", {1, 2, 3, 4, 5, 6})),
                       {"a.npy", "'<u2'", "(2, 3)", "one-dimensional"}));
}

TEST(NpyFile, TwoDimensionsInFortranOrderAreRefused) {
  EXPECT_TRUE(
      contains(refusal("a.npy", npy<std::uint16_t>("<u2", "(1, 2)", {1, 2}, "True")), {"(1, 2)"}));
}

TEST(NpyFile, ScalarIsRefused) {
  EXPECT_TRUE(contains(refusal("a.npy", npy<std::uint16_t>("<u2", "()", {1})),
                       {"shape ()", "one-dimensional"}));
}

TEST(NpyFile, BigEndianIsRefused) {
  EXPECT_TRUE(
      contains(refusal("a.npy", npy_of<std::uint16_t>(">u2", {1})), {"'>u2'", "big-endian"}));
}

TEST(NpyFile, OtherIntegersAreRefused) {
  EXPECT_TRUE(contains(refusal("a.npy", npy_of<std::uint64_t>("<u8", {1})),
                       {"'<u8'", "no dtype of token ids"}));
}

TEST(NpyFile, RecordsAreRefused) {
  std::string file = npy_of<std::uint16_t>("<u2", {1});
  file.replace(file.find("'<u2'"), 5, "[('a'");
  EXPECT_TRUE(contains(refusal("a.npy", file), {"a.npy", "a string expected"}));
}

TEST(NpyFile, TruncatedDataIsRefusedWithBothSizes) {
  std::string file = npy_of<std::uint16_t>("<u2", {1, 2, 3});
  file.pop_back();
  EXPECT_TRUE(
      contains(refusal("a.npy", file), {"truncated", "(3,)", "'<u2'", "3 × 2 bytes", "holds 5"}));
}

TEST(NpyFile, ShapeBeyondSixtyFourBitsIsTruncatedData) {
  EXPECT_TRUE(contains(refusal("a.npy", npy<std::int64_t>("<i8", "(9223372036854775807,)", {1})),
                       {"truncated"}));
}

TEST(NpyFile, BytesAfterTheArrayAreRefused) {
  EXPECT_TRUE(
      contains(refusal("a.npy", npy_of<std::uint16_t>("<u2", {1, 2}) + "x"), {"1 bytes follow"}));
}

TEST(NpyFile, EveryCutOfTheHeaderIsRefused) {
  const std::string file = npy_of<std::uint16_t>("<u2", {1, 2});
  for (std::size_t size = 1; size < file.size(); ++size) {
    EXPECT_TRUE(contains(refusal("a.npy", file.substr(0, size)), {"a.npy"})) << size;
  }
}

TEST(NpyFile, UnknownVersionIsRefused) {
  EXPECT_TRUE(contains(refusal("a.npy", npy<std::uint16_t>("<u2", "(1,)", {1}, "False", 4)),
                       {"version 4.0"}));
}

TEST(NpyFile, NamedSoWithoutTheMagicIsRefused) {
  EXPECT_TRUE(
      contains(refusal("a.npy", "plain text"), {"a.npy", "does not start as a NumPy file"}));
}

TEST(NpyFile, NoTokensAreRefused) {
  EXPECT_TRUE(contains(refusal("a.npy", npy_of<std::uint16_t>("<u2", {})), {"a.npy", "no tokens"}));
}

TEST(NpyFile, MissingKeyIsRefused) {
  std::string file = npy_of<std::uint16_t>("<u2", {1});
  file.replace(file.find("'shape'"), 7, "'shapE'");
  EXPECT_TRUE(contains(refusal("a.npy", file), {"unknown key 'shapE'"}));
}

TEST(TokenFile, EmptyTextIsRefused) {
  EXPECT_TRUE(contains(refusal("a.txt", ""), {"a.txt", "empty"}));
}

TEST(TokenFile, DirectoryIsRefused) {
  const TempDir dir;
  EXPECT_TRUE(
      contains(thrown<UsageError>([&] { const TokenFile file(dir.path()); }), {"not a file"}));
}

TEST(TokenFile, MissingFileIsAnErrorOfTheSystem) {
  EXPECT_TRUE(contains(thrown<IoError>([] { const TokenFile file("/nowhere/a.txt"); }),
                       {"/nowhere/a.txt", "No such file"}));
}

TEST(TokenFile, ReadingBeyondTheEndIsRefused) {
  const TempDir dir;
  const TokenFile file(dir.write("a.txt", "abc"));
  std::vector<std::int32_t> two(2);
  EXPECT_TRUE(contains(thrown<UsageError>([&] { file.read(2, two); }), {"[2, 4)", "3 tokens"}));
  EXPECT_TRUE(contains(thrown<UsageError>([&] { file.read(-1, two); }), {"[-1, 1)"}));
}

TEST(Vocabulary, FirstTokenOutsideIsNamedWithItsPosition) {
  const TempDir dir;
  const TokenFile file(dir.write("a.npy", npy_of<std::uint16_t>("<u2", {1, 2, 257, 300})));
  EXPECT_TRUE(contains(thrown<UsageError>([&] { file.check_vocabulary(256); }),
                       {"token 257", "position 2", "256"}));
}

TEST(Vocabulary, LargestTokenMayBeItsLast) {
  const TempDir dir;
  const TokenFile file(dir.write("a.npy", npy_of<std::int32_t>("<i4", {255, 0})));
  EXPECT_NO_THROW(file.check_vocabulary(256));
  EXPECT_THROW(file.check_vocabulary(255), UsageError);
}

TEST(Vocabulary, NegativeTokenIsOutside) {
  const TempDir dir;
  const TokenFile file(dir.write("a.npy", npy_of<std::int64_t>("<i8", {1, -7})));
  EXPECT_TRUE(contains(thrown<UsageError>([&] { file.check_vocabulary(256); }),
                       {"token -7", "position 1"}));
}

TEST(Vocabulary, BytesOfATextAreCheckedToo) {
  const TempDir dir;
  const TokenFile file(dir.write("a.txt", "abz"));
  EXPECT_TRUE(contains(thrown<UsageError>([&] { file.check_vocabulary(100); }),
                       {"token 122", "position 2"}));
}

/// Tokens 0, 1, …: a token says its own position.
std::filesystem::path counting_tokens(const TempDir& dir, std::int32_t count) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return dir.write("counting.npy", npy_of("<i4", tokens));
}

struct Batch {
  std::vector<std::int32_t> inputs, targets;
};
Batch training_batch(const TokenData& data, std::int64_t step, std::int64_t j, std::size_t rows) {
  Batch batch;
  batch.inputs.resize(rows * static_cast<std::size_t>(data.options().seq));
  batch.targets.resize(batch.inputs.size());
  data.training_batch(step, j, batch.inputs, batch.targets);
  return batch;
}

TEST(TokenData, TailIsKeptForValidation) {
  const TempDir dir;
  const TokenData data(counting_tokens(dir, 1000), {.val_fraction = 0.1, .seq = 7, .vocab = 1000});
  EXPECT_EQ(data.training_tokens(), 900);
  EXPECT_EQ(data.validation_tokens(), 100);
}

TEST(TokenData, TargetsAreTheNextTokens) {
  const TempDir dir;
  const TokenData data(counting_tokens(dir, 1000), {.val_fraction = 0.1, .seq = 7, .vocab = 1000});
  const Batch batch = training_batch(data, 3, 2, 5);
  for (std::size_t i = 0; i < batch.inputs.size(); ++i) {
    EXPECT_EQ(batch.targets[i], batch.inputs[i] + 1);
    if (i % 7 != 0) {
      EXPECT_EQ(batch.inputs[i], batch.inputs[i - 1] + 1);
    }
  }
}

TEST(TokenData, TrainingStaysInItsPartAndReachesBothEnds) {
  const TempDir dir;
  const TokenData data(counting_tokens(dir, 40), {.val_fraction = 0.25, .seq = 4, .vocab = 40});
  std::set<std::int32_t> firsts, lasts;
  for (std::int64_t step = 0; step < 100; ++step) {
    const Batch batch = training_batch(data, step, 0, 4);
    for (std::size_t row = 0; row < 4; ++row) {
      firsts.insert(batch.inputs[4 * row]);
      lasts.insert(batch.targets[4 * row + 3]);
    }
  }
  EXPECT_EQ(*firsts.begin(), 0);
  EXPECT_EQ(*lasts.rbegin(), 29);
}

TEST(TokenData, MicroBatchDependsOnSeedStepAndItsNumber) {
  const TempDir dir;
  const auto path = counting_tokens(dir, 10000);
  const TokenData data(path, {.seq = 4, .vocab = 10000, .seed = 1});
  const TokenData again(path, {.seq = 4, .vocab = 10000, .seed = 1});
  const TokenData other(path, {.seq = 4, .vocab = 10000, .seed = 2});
  const std::vector<std::int32_t> batch = training_batch(data, 5, 3, 8).inputs;
  EXPECT_EQ(training_batch(again, 5, 3, 8).inputs, batch);
  EXPECT_NE(training_batch(other, 5, 3, 8).inputs, batch);
  EXPECT_NE(training_batch(data, 6, 3, 8).inputs, batch);
  EXPECT_NE(training_batch(data, 5, 4, 8).inputs, batch);
}

TEST(TokenData, RowsOfALargerBatchBeginWithTheSmallerOne) {
  const TempDir dir;
  const TokenData data(counting_tokens(dir, 1000), {.seq = 4, .vocab = 1000});
  const Batch large = training_batch(data, 0, 0, 3);
  const Batch small = training_batch(data, 0, 0, 1);
  EXPECT_TRUE(std::equal(small.inputs.begin(), small.inputs.end(), large.inputs.begin()));
}

TEST(TokenData, StepBeyondThirtyTwoBitsIsAnotherDraw) {
  const SequenceDraw draw = {.step = 1};
  const SequenceDraw far = {.step = (std::int64_t{1} << 32) + 1};
  EXPECT_NE(draw_sequence_start(draw, 1 << 30), draw_sequence_start(far, 1 << 30));
}

TEST(TokenData, ValidationSequencesAreConsecutive) {
  const TempDir dir;
  const TokenData data(counting_tokens(dir, 100), {.val_fraction = 0.5, .seq = 7, .vocab = 100});
  ASSERT_EQ(data.validation_sequences(), 7);  // 49 targets follow the tail's first token
  for (std::int32_t index = 0; index < 7; ++index) {
    std::vector<std::int32_t> inputs(7), targets(7);
    data.validation_sequence(index, inputs, targets);
    EXPECT_EQ(inputs.front(), 50 + 7 * index);
    EXPECT_EQ(targets.back(), 57 + 7 * index);
  }
}

TEST(TokenData, ValidationSequenceBeyondTheTailIsRefused) {
  const TempDir dir;
  const TokenData data(counting_tokens(dir, 100), {.val_fraction = 0.5, .seq = 7, .vocab = 100});
  std::vector<std::int32_t> inputs(7), targets(7);
  EXPECT_THROW(data.validation_sequence(7, inputs, targets), UsageError);
}

TEST(TokenData, NoValidationShareMeansNoValidation) {
  const TempDir dir;
  const TokenData data(counting_tokens(dir, 10), {.val_fraction = 0, .seq = 9, .vocab = 10});
  EXPECT_EQ(data.validation_sequences(), 0);
  EXPECT_EQ(training_batch(data, 0, 0, 1).inputs.front(), 0);
}

TEST(TokenData, ShortTrainingPartIsRefusedWithTheNumbers) {
  const TempDir dir;
  EXPECT_TRUE(contains(thrown<UsageError>([&] {
                         const TokenData data(counting_tokens(dir, 20),
                                              {.val_fraction = 0.5, .seq = 10, .vocab = 20});
                       }),
                       {"20 tokens", "training part gets 10", "need 11"}));
}

TEST(TokenData, ShortValidationPartIsRefusedWithTheNumbers) {
  const TempDir dir;
  EXPECT_TRUE(contains(thrown<UsageError>([&] {
                         const TokenData data(counting_tokens(dir, 100),
                                              {.val_fraction = 0.1, .seq = 10, .vocab = 100});
                       }),
                       {"100 tokens", "validation part gets 10", "need 11"}));
}

}  // namespace
}  // namespace zero3::trainer
