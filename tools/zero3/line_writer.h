#pragma once

#include <string>
#include <string_view>

namespace zero3::program {

/// Writes lines to a file, or to standard output for "-", each at once, so that a reader follows a
/// run and a full disk is noticed at the line that does not fit.
class LineWriter {
 public:
  /// Truncates the file. Throws IoError that names `what` and the path.
  LineWriter(std::string what, std::string path);
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  /// Text and a line's end. Throws IoError that names path and reason.
  void write_line(std::string_view line);
  /// Text alone.
  void write(std::string_view text);

 private:
  std::string what_, path_;
  int file_ = -1;
};

}  // namespace zero3::program
