#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <zero3/units.h>

namespace zero3 {

/// A file in which tensors of one size wait, in chunks. It has no name, so that the system removes
/// it whatever ends the process, and all its bytes from the beginning, so that no later write meets
/// a full disk. Goes around the page cache where the file system can.
class OffloadFile {
 public:
  static constexpr std::int64_t kChunkBytes = std::int64_t{4} << 20;
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

  /// Chunk `chunk` of a tensor: `bytes` at `data`, at a multiple of kBlockBytes and with room up to
  /// the next. Reading gives the bytes last written. Throws IoError that names the place, also
  /// where what is read is not what was written. One thread writes, one reads; not the same chunk.
  void write(std::int64_t tensor, std::int64_t chunk, std::byte* data, std::int64_t bytes);
  void read(std::int64_t tensor, std::int64_t chunk, std::byte* data, std::int64_t bytes);

 private:
  void open();
  void reserve(std::int64_t bytes);
  [[nodiscard]] std::int64_t offset(std::int64_t tensor, std::int64_t chunk) const;
  [[nodiscard]] std::string place(std::int64_t tensor, std::int64_t chunk) const;

  std::string directory_;
  std::int64_t chunks_;  ///< of a tensor
  std::int64_t stride_;  ///< bytes of a tensor
  int descriptor_ = -1;
  bool direct_ = false;
  std::vector<std::uint64_t> checksums_;
};

}  // namespace zero3
