#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <zero3/units.h>
#include "disk_queue.h"

namespace zero3 {

/// A part of a tensor in memory.
struct OffloadChunk {
  std::int64_t tensor = 0, number = 0;
  /// At a multiple of OffloadFile::kBlockBytes, and with room up to the next.
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

/// A file in which tensors of one size wait, in chunks. It has no name, so that the system removes
/// it whatever ends the process, and all its bytes from the beginning, so that no later write meets
/// a full disk. Goes around the page cache where the file system can.
class OffloadFile {
 public:
  static constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
  static constexpr std::int64_t kSlots = 4;
  /// Of addresses, offsets and lengths, as direct I/O wants them.
  static constexpr std::int64_t kBlockBytes = 4096;

  /// Throws UsageError where `directory` is none or takes no files, or has less room than the file
  /// needs, with both figures.
  OffloadFile(const std::string& directory, std::int64_t tensors, Bytes tensor_bytes);
  OffloadFile(const OffloadFile&) = delete;
  OffloadFile& operator=(const OffloadFile&) = delete;
  ~OffloadFile();

  /// Of the whole file, with what fills up blocks.
  [[nodiscard]] static Bytes size_of(std::int64_t tensors, Bytes tensor_bytes);
  [[nodiscard]] bool direct() const { return direct_; }
  /// In each direction kSlots chunks may be under way: those of a tensor whose numbers differ mod
  /// kSlots. A chunk that starts waits for the one that its slot was at. The data may not be
  /// touched until finish, which throws IoError that names the place; that of a read also where the
  /// bytes are not those last written. Where it throws, nothing is under way in its direction. One
  /// thread writes, one reads; not the same chunk.
  void start_write(const OffloadChunk& chunk);
  void finish_write(const OffloadChunk& chunk);
  void start_read(const OffloadChunk& chunk);
  void finish_read(const OffloadChunk& chunk);

 private:
  void open();
  void reserve(std::int64_t bytes);
  [[nodiscard]] std::int64_t offset(const OffloadChunk& chunk) const;
  [[nodiscard]] std::uint64_t& checksum_of(const OffloadChunk& chunk);
  [[nodiscard]] std::string place(const OffloadChunk& chunk) const;
  [[noreturn]] static void fail(DiskQueue& queue, const std::string& message);

  std::string directory_;
  std::int64_t chunks_;  ///< of a tensor
  std::int64_t stride_;  ///< bytes of a tensor
  int descriptor_ = -1;
  bool direct_ = false;
  std::vector<std::uint64_t> checksums_;
  std::unique_ptr<DiskQueue> writes_, reads_;
};

}  // namespace zero3
