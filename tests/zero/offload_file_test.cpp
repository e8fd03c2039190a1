#include "offload_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "support/contains.h"
#include "support/offload_faults.h"
#include "support/temp_dir.h"
#include "support/thrown.h"

#include <zero3/error.h>

namespace zero3::test {
namespace {

constexpr std::int64_t kChunk = OffloadFile::kChunkBytes;

/// Memory as direct I/O wants it.
struct Block {
  explicit Block(std::int64_t bytes, std::int64_t first = 0)
      : size(round_up(bytes, OffloadFile::kBlockBytes)),
        data(static_cast<std::byte*>(
                 std::aligned_alloc(OffloadFile::kBlockBytes, static_cast<std::size_t>(size))),
             &std::free) {
    for (std::int64_t i = 0; i < size; ++i)
      data.get()[i] = static_cast<std::byte>((first + i * 7) & 0xff);
  }
  std::int64_t size;
  std::unique_ptr<std::byte, decltype(&std::free)> data;
};

void write(OffloadFile& file, const OffloadChunk& chunk) {
  file.start_write(chunk);
  file.finish_write(chunk);
}

void read(OffloadFile& file, const OffloadChunk& chunk) {
  file.start_read(chunk);
  file.finish_read(chunk);
}

bool same(const Block& a, const Block& b, std::int64_t bytes) {
  return std::memcmp(a.data.get(), b.data.get(), static_cast<std::size_t>(bytes)) == 0;
}

// E10: sizes that are no multiples of 512 or 4096.
TEST(OffloadFile, GivesBackWhatWasWrittenInAnyOrder) {
  const TempDir dir;
  for (const std::int64_t bytes : {1, 511, 512, 4095, 4096, 4097, 100003}) {
    OffloadFile file(dir.path().string(), 3, Bytes(bytes));
    for (const std::int64_t tensor : {0, 1, 2})
      write(file, {tensor, 0, Block(bytes, tensor).data.get(), bytes});
    for (const std::int64_t tensor : {2, 0, 1}) {
      const Block got(bytes, 99);
      read(file, {tensor, 0, got.data.get(), bytes});
      EXPECT_TRUE(same(got, Block(bytes, tensor), bytes)) << bytes << " bytes, tensor " << tensor;
    }
  }
}

TEST(OffloadFile, ATensorMayHaveManyChunks) {
  const TempDir dir;
  const std::int64_t tail = 12345;
  OffloadFile file(dir.path().string(), 2, Bytes(2 * kChunk + tail));
  const auto bytes_of_chunk = [&](std::int64_t c) { return c == 2 ? tail : kChunk; };
  const auto value = [](std::int64_t t, std::int64_t c) { return 10 * t + c; };
  for (std::int64_t t = 0; t < 2; ++t) {
    for (std::int64_t c = 0; c < 3; ++c)
      write(file, {t, c, Block(bytes_of_chunk(c), value(t, c)).data.get(), bytes_of_chunk(c)});
  }
  for (std::int64_t t = 0; t < 2; ++t) {
    for (std::int64_t c = 0; c < 3; ++c) {
      const Block got(bytes_of_chunk(c), 99);
      read(file, {t, c, got.data.get(), bytes_of_chunk(c)});
      EXPECT_TRUE(same(got, Block(bytes_of_chunk(c), value(t, c)), bytes_of_chunk(c)));
    }
  }
}

// As the disk tier moves a tensor, but for finishing what the next start of a slot would wait for.
TEST(OffloadFile, ChunksOfOneTensorMoveAtTheSameTime) {
  const TempDir dir;
  constexpr std::int64_t kChunks = 2 * OffloadFile::kSlots + 1;
  OffloadFile file(dir.path().string(), 1, Bytes(kChunks * kChunk));
  std::vector<Block> blocks;
  for (std::int64_t c = 0; c < kChunks; ++c) blocks.emplace_back(kChunk, c);
  const auto chunk = [](std::int64_t number, const Block& block) {
    return OffloadChunk{0, number, block.data.get(), kChunk};
  };
  for (std::int64_t c = 0; c < kChunks; ++c)
    file.start_write(chunk(c, blocks[static_cast<std::size_t>(c)]));
  for (std::int64_t c = kChunks - OffloadFile::kSlots; c < kChunks; ++c)
    file.finish_write(chunk(c, blocks[static_cast<std::size_t>(c)]));

  for (std::int64_t first = 0; first < kChunks; first += OffloadFile::kSlots) {
    const std::int64_t end = std::min(kChunks, first + OffloadFile::kSlots);
    std::vector<Block> got;
    for (std::int64_t c = first; c < end; ++c)
      file.start_read(chunk(c, got.emplace_back(kChunk, 99)));
    for (std::int64_t c = first; c < end; ++c) {
      const Block& block = got[static_cast<std::size_t>(c - first)];
      file.finish_read(chunk(c, block));
      EXPECT_TRUE(same(block, blocks[static_cast<std::size_t>(c)], kChunk)) << "chunk " << c;
    }
  }
}

TEST(OffloadFile, TakesItsBytesAtOnceAndHasNoName) {
  const TempDir dir;
  const Bytes size = OffloadFile::size_of(3, Bytes(5000));
  EXPECT_EQ(size, Bytes(3 * 8192));
  {
    const OffloadFile file(dir.path().string(), 3, Bytes(5000));
    EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "a file that a crash could leave behind";
    const std::vector<OpenFile> open = nameless_files_in(dir.path());
    ASSERT_EQ(open.size(), 1U);
    EXPECT_EQ(open[0].bytes, size.count());
    EXPECT_GE(open[0].allocated, size.count());
  }
  EXPECT_TRUE(nameless_files_in(dir.path()).empty());
}

TEST(OffloadFile, ADirectoryThatCannotTakeItIsRefused) {
  const TempDir dir;
  const auto refused = [](const std::string& directory, std::int64_t bytes) {
    return thrown<UsageError>([&] { const OffloadFile file(directory, 1, Bytes(bytes)); });
  };
  EXPECT_TRUE(contains(refused((dir.path() / "gone").string(), 1), {"gone", "is no directory"}));
  EXPECT_TRUE(contains(refused(dir.write("file", "x").string(), 1), {"file", "is no directory"}));
  EXPECT_TRUE(contains(refused("/proc", 1), {"'/proc'", "takes no file", "written to"}));
  EXPECT_TRUE(contains(refused(dir.path().string(), std::int64_t{1} << 60),
                       {dir.path().string(), "free", "need 1024.0 PiB", "another directory"}));
}

TEST(OffloadFile, AChangedByteIsFoundAndPlaced) {
  const TempDir dir;
  OffloadFile file(dir.path().string(), 2, Bytes(10000));
  const Block block(10000, 5);
  for (const std::int64_t tensor : {0, 1}) write(file, {tensor, 0, block.data.get(), 10000});
  const std::vector<OpenFile> open = nameless_files_in(dir.path());
  ASSERT_EQ(open.size(), 1U);
  const std::int64_t stride = open[0].bytes / 2;
  for (const std::int64_t at : {0, 1, 4095, 9999}) {
    flip_byte(open[0], stride + at);
    const std::string error = thrown<IoError>([&] {
      read(file, {1, 0, Block(10000).data.get(), 10000});
    });
    EXPECT_TRUE(
        contains(error, {"not what was written", "layer 1", "offset 12288", dir.path().string()}))
        << "byte " << at;
    flip_byte(open[0], stride + at);
    read(file, {1, 0, Block(10000).data.get(), 10000});
  }
  read(file, {0, 0, Block(10000).data.get(), 10000});
}

// E10
TEST(OffloadFile, AWriteThatFailsIsAnErrorThen) {
  const TempDir dir;
  OffloadFile file(dir.path().string(), 3, Bytes(8192));
  const Block block(8192, 3);
  write(file, {0, 0, block.data.get(), 8192});
  {
    const LargestFile limit(2 * 8192);
    write(file, {1, 0, block.data.get(), 8192});
    EXPECT_TRUE(contains(thrown<IoError>([&] {
                           write(file, {2, 0, block.data.get(), 8192});
                         }),
                         {"cannot write", "layer 2", "offset 16384", "too large", "with room"}));
  }
  write(file, {2, 0, block.data.get(), 8192});
  const Block got(8192, 99);
  read(file, {2, 0, got.data.get(), 8192});
  EXPECT_TRUE(same(got, block, 8192));
}

}  // namespace
}  // namespace zero3::test
