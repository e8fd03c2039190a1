#include <zero3/trainer/token_file.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <zero3/error.h>
#include "npy_header.h"

namespace zero3::trainer {
namespace {

/// Tokens that are scanned at a time; their pages are then dropped, so that a scan does not count
/// as resident memory.
constexpr std::int64_t kScanTokens = std::int64_t{1} << 20;

constexpr std::pair<const char*, DType> kTokenTypes[] = {{"|u1", DType::kU8},
                                                         {"<u2", DType::kU16},
                                                         {"<i4", DType::kI32},
                                                         {"<u4", DType::kU32},
                                                         {"<i8", DType::kI64}};

DType token_type(const NpyHeader& header, const std::string& path) {
  const std::string shape =
      fmt::format("({}{})", fmt::join(header.shape, ", "), header.shape.size() == 1 ? "," : "");
  const auto refuse = [&](const char* why) -> DType {
    throw UsageError(concat("'", path, "': array of dtype '", header.descr, "' and shape ", shape,
                            " ", why,
                            "; give one dimension of uint8, uint16, int32, uint32 or int64"));
  };
  if (header.shape.size() != 1) return refuse("is not one-dimensional");
  for (const auto& [descr, dtype] : kTokenTypes) {
    if (header.descr == descr) return dtype;
  }
  if (header.descr.starts_with('>')) return refuse("is big-endian");
  if (header.descr.find('f') != std::string::npos) return refuse("holds floating-point numbers");
  return refuse("has no dtype of token ids");
}

/// Calls f with a zero of the C++ type of a token dtype.
template <class F>
auto visit_token_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kU16:
      return f(std::uint16_t{});
    case DType::kI32:
      return f(std::int32_t{});
    case DType::kU32:
      return f(std::uint32_t{});
    case DType::kI64:
      return f(std::int64_t{});
    default:
      return f(std::uint8_t{});
  }
}

/// The array may start anywhere in the file, so elements are copied out and not dereferenced.
template <class T>
T load(const std::byte* tokens, std::int64_t index) {
  T value;
  std::memcpy(&value, tokens + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
bool all_below(const std::byte* tokens, std::int64_t begin, std::int64_t end, std::int64_t vocab) {
  using Unsigned = std::make_unsigned_t<T>;
  Unsigned largest = 0;  // Negative ids are the largest ones
  for (std::int64_t i = begin; i < end; ++i) {
    largest = std::max(largest, static_cast<Unsigned>(load<T>(tokens, i)));
  }
  return largest < static_cast<std::uint64_t>(vocab);
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path) : path_(path.string()) {
  map();
  try {
    parse();
  } catch (...) {
    munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
    throw;
  }
}

TokenFile::~TokenFile() {
  munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
}

void TokenFile::map() {
  const auto fail = [this](const char* what) {
    throw IoError(concat("cannot ", what, " '", path_, "': ", std::strerror(errno)));
  };
  struct stat status = {};
  if (stat(path_.c_str(), &status) != 0) fail("read");
  ZERO3_CHECK(S_ISREG(status.st_mode), "'", path_,
              "' is not a file; token data must be a regular file");
  ZERO3_CHECK(status.st_size > 0, "'", path_,
              "' is empty; token data needs at least a sequence and its next token");
  const int file = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail("open");
  const auto size = static_cast<std::size_t>(status.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  errno = error;
  if (address == MAP_FAILED) fail("map");
  // Sequences start anywhere: reading around a fault would make pages resident that nobody asked
  // for.
  madvise(address, size, MADV_RANDOM);
  mapping_ = {static_cast<const std::byte*>(address), size};
}

void TokenFile::parse() {
  tokens_ = mapping_.data();
  size_ = static_cast<std::int64_t>(mapping_.size());
  if (!path_.ends_with(".npy") && !has_npy_magic(mapping_)) return;

  const NpyHeader header = parse_npy_header(mapping_, path_);
  dtype_ = token_type(header, path_);
  const std::int64_t bytes = size_ - header.data_offset;
  tokens_ += header.data_offset;
  size_ = header.shape[0];
  ZERO3_CHECK(size_ > 0, "'", path_, "': the array of dtype '", header.descr,
              "' and shape (0,) has no tokens");
  // By division: the product may exceed 64 bits in a damaged header.
  ZERO3_CHECK(bytes / size_of(dtype_) >= size_, "'", path_, "': truncated: shape (", size_,
              ",) of dtype '", header.descr, "' needs ", size_, " × ", size_of(dtype_),
              " bytes, the file holds ", bytes);
  ZERO3_CHECK(bytes == size_ * size_of(dtype_), "'", path_, "': ", bytes - size_ * size_of(dtype_),
              " bytes follow the array of shape (", size_, ",) and dtype '", header.descr, "'");
}

void TokenFile::read(std::int64_t begin, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  ZERO3_CHECK(begin >= 0 && begin <= size_ && count <= size_ - begin, "tokens [", begin, ", ",
              begin + count, ") are not inside '", path_, "' of ", size_, " tokens");
  visit_token_type(dtype_, [&](auto zero) {
    for (std::int64_t i = 0; i < count; ++i) {
      out[static_cast<std::size_t>(i)] =
          static_cast<std::int32_t>(load<decltype(zero)>(tokens_, begin + i));
    }
  });
}

void TokenFile::check_vocabulary(std::int64_t vocab) const {
  if ((dtype_ == DType::kU8 && vocab >= 1 << 8) || (dtype_ == DType::kU16 && vocab >= 1 << 16))
    return;
  visit_token_type(dtype_, [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t begin = 0; begin < size_; begin += kScanTokens) {
      const std::int64_t end = std::min(size_, begin + kScanTokens);
      std::int64_t bad = begin;
      if (!all_below<T>(tokens_, begin, end, vocab)) {
        while (all_below<T>(tokens_, bad, bad + 1, vocab)) ++bad;
        throw UsageError(concat("'", path_, "': token ", std::int64_t{load<T>(tokens_, bad)},
                                " at position ", bad, " does not fit a vocabulary of ", vocab,
                                "; choose a model with a larger vocabulary"));
      }
      madvise(const_cast<std::byte*>(mapping_.data()), mapping_.size(), MADV_DONTNEED);
    }
  });
}

}  // namespace zero3::trainer
