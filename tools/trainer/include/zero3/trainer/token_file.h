#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <zero3/dtype.h>

namespace zero3::trainer {

/// Token ids in a memory-mapped file: plain text, of which every byte is a token, or (named .npy,
/// or starting as one) a one-dimensional NumPy array of uint8, uint16, int32, uint32 or int64,
/// little-endian. The file must not change while it is open. All functions may be called from
/// several threads.
class TokenFile {
 public:
  /// Throws IoError if it cannot be read, UsageError naming path, dtype and shape if it is another
  /// array, is truncated, has bytes after the array, or has no tokens.
  explicit TokenFile(const std::filesystem::path& path);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  /// Tokens.
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Tokens [begin, begin + out.size()). Throws UsageError when they are not inside the file.
  void read(std::int64_t begin, std::span<std::int32_t> out) const;
  /// Throws UsageError naming the first token outside of [0, vocab) and its position. Reads the
  /// whole file unless its dtype cannot hold such a token.
  void check_vocabulary(std::int64_t vocab) const;

 private:
  void map();
  void parse();

  std::string path_;
  DType dtype_ = DType::kU8;
  std::int64_t size_ = 0;
  std::span<const std::byte> mapping_;
  const std::byte* tokens_ = nullptr;
};

}  // namespace zero3::trainer
