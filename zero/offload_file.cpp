#include "offload_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <zero3/error.h>

namespace zero3 {
namespace {

/// Of whole blocks. Each round is invertible in the word and in what came before, so that a single
/// changed word always shows; four lanes, as one is bound by the latency of a multiplication.
std::uint64_t checksum(const std::byte* data, std::int64_t bytes) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15U;
  std::array<std::uint64_t, 4> lanes = {1, 2, 3, 4};
  for (std::int64_t at = 0; at < bytes; at += 32) {
    std::array<std::uint64_t, 4> words;
    std::memcpy(words.data(), data + at, 32);
    for (std::size_t i = 0; i < 4; ++i) lanes[i] = std::rotl((lanes[i] ^ words[i]) * kOdd, 29);
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : lanes) sum = std::rotl((sum ^ lane) * kOdd, 29);
  return sum;
}

std::int64_t whole_blocks(std::int64_t bytes) {
  return round_up(bytes, OffloadFile::kBlockBytes);
}

}  // namespace

OffloadFile::OffloadFile(const std::string& directory, std::int64_t tensors, Bytes tensor_bytes)
    : directory_(directory),
      chunks_(div_ceil(tensor_bytes.count(), kChunkBytes)),
      stride_(whole_blocks(tensor_bytes.count())) {
  open();
  try {
    reserve(size_of(tensors, tensor_bytes).count());
    checksums_.resize(static_cast<std::size_t>(tensors * chunks_));
    writes_ = make_disk_queue(descriptor_, kSlots);
    reads_ = make_disk_queue(descriptor_, kSlots);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

OffloadFile::~OffloadFile() {
  writes_.reset();
  reads_.reset();
  close(descriptor_);
}

Bytes OffloadFile::size_of(std::int64_t tensors, Bytes tensor_bytes) {
  return Bytes(tensors * whole_blocks(tensor_bytes.count()));
}

void OffloadFile::open() {
  ZERO3_CHECK(std::filesystem::is_directory(directory_), "the offload directory '", directory_,
              "' is no directory; create it, or give another");
  constexpr int kMode = O_RDWR | O_CLOEXEC;
  descriptor_ = ::open(directory_.c_str(), kMode | O_TMPFILE | O_DIRECT, 0600);
  direct_ = descriptor_ >= 0;
  if (!direct_) descriptor_ = ::open(directory_.c_str(), kMode | O_TMPFILE, 0600);
  if (descriptor_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
    // A file system without nameless files.
    std::string name = directory_ + "/zero3-offload-XXXXXX";
    descriptor_ = mkostemp(name.data(), O_CLOEXEC);
    if (descriptor_ >= 0) {
      unlink(name.c_str());
      direct_ = fcntl(descriptor_, F_SETFL, O_DIRECT) == 0;
    }
  }
  ZERO3_CHECK(descriptor_ >= 0, "the offload directory '", directory_,
              "' takes no file: ", std::strerror(errno), "; give one that can be written to");
}

void OffloadFile::reserve(std::int64_t bytes) {
  struct statvfs room = {};
  if (fstatvfs(descriptor_, &room) == 0) {
    const auto free = static_cast<std::int64_t>(room.f_bavail * room.f_frsize);
    ZERO3_CHECK(free >= bytes, "the offload directory '", directory_, "' has ", Bytes(free),
                " free and layer inputs need ", Bytes(bytes),
                "; give another directory, a shorter sequence or a smaller batch");
  }
  const int error = bytes == 0 ? 0 : posix_fallocate(descriptor_, 0, bytes);
  ZERO3_CHECK(error == 0, "the offload directory '", directory_, "' has no ", Bytes(bytes),
              " for layer inputs: ", std::strerror(error), "; give another directory");
}

std::int64_t OffloadFile::offset(const OffloadChunk& chunk) const {
  return chunk.tensor * stride_ + chunk.number * kChunkBytes;
}

std::uint64_t& OffloadFile::checksum_of(const OffloadChunk& chunk) {
  return checksums_[static_cast<std::size_t>(chunk.tensor * chunks_ + chunk.number)];
}

std::string OffloadFile::place(const OffloadChunk& chunk) const {
  return concat("the input of layer ", chunk.tensor, " (offset ", offset(chunk),
                " of the offload file in '", directory_, "')");
}

void OffloadFile::fail(DiskQueue& queue, const std::string& message) {
  for (std::int64_t slot = 0; slot < kSlots; ++slot) static_cast<void>(queue.finish(slot));
  throw IoError(message);
}

void OffloadFile::start_write(const OffloadChunk& chunk) {
  const std::int64_t whole = whole_blocks(chunk.bytes);
  std::memset(chunk.data + chunk.bytes, 0, static_cast<std::size_t>(whole - chunk.bytes));
  checksum_of(chunk) = checksum(chunk.data, whole);
  writes_->start(chunk.number % kSlots,
                 {DiskTransfer::Kind::kWrite, chunk.data, whole, offset(chunk)});
}

void OffloadFile::finish_write(const OffloadChunk& chunk) {
  const int error = writes_->finish(chunk.number % kSlots);
  if (error != 0) {
    fail(*writes_, concat("cannot write ", place(chunk), ": ", std::strerror(error),
                          "; give an offload directory with room, or keep layer inputs elsewhere"));
  }
}

void OffloadFile::start_read(const OffloadChunk& chunk) {
  reads_->start(chunk.number % kSlots,
                {DiskTransfer::Kind::kRead, chunk.data, whole_blocks(chunk.bytes), offset(chunk)});
}

void OffloadFile::finish_read(const OffloadChunk& chunk) {
  const int error = reads_->finish(chunk.number % kSlots);
  if (error != 0) fail(*reads_, concat("cannot read ", place(chunk), ": ", std::strerror(error)));
  if (checksum(chunk.data, whole_blocks(chunk.bytes)) != checksum_of(chunk)) {
    fail(*reads_, concat("what is read is not what was written as ", place(chunk),
                         ": the disk or something else has changed it; use another disk"));
  }
}

}  // namespace zero3
