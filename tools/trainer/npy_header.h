#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zero3::trainer {

/// The header of a NumPy array file, as `numpy.lib.format` documents it (versions 1.0, 2.0
/// and 3.0).
struct NpyHeader {
  /// NumPy's name of the dtype: byte order, kind and size, such as "<u2".
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
  /// Where the elements start in the file.
  std::int64_t data_offset = 0;
};

/// True if the file starts as NumPy's do.
[[nodiscard]] bool has_npy_magic(std::span<const std::byte> file);

/// Parses the start of a file. Throws UsageError naming `path` for another version, a header that
/// is cut short, and a header that is no dictionary of exactly descr (a string), fortran_order and
/// shape.
[[nodiscard]] NpyHeader parse_npy_header(std::span<const std::byte> file, const std::string& path);

}  // namespace zero3::trainer
