#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include <zero3/units.h>

namespace zero3::cpu {

/// A file in memory, mapped once and cut into blocks, which other processes can map as well
/// (internal::shared_place). Pages exist once they are touched, and no longer than their block.
/// Thread-safe.
class MemoryFile {
 public:
  /// Throws OutOfMemoryError, in which the file is called `owner`.
  MemoryFile(std::string owner, Bytes capacity);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] Bytes capacity() const { return capacity_; }

  /// Offset of a block of `size`. Throws OutOfMemoryError.
  [[nodiscard]] std::int64_t take(Bytes size);
  void give(std::int64_t offset, Bytes size) noexcept;

 private:
  std::string owner_;
  Bytes capacity_;
  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::mutex mutex_;
  std::map<std::int64_t, std::int64_t> free_;  ///< length by offset
};

}  // namespace zero3::cpu
