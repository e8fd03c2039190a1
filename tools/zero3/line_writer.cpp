#include "line_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <zero3/error.h>

namespace zero3::program {

LineWriter::LineWriter(std::string what, std::string path)
    : what_(std::move(what)), path_(std::move(path)) {
  if (path_ == "-") {
    file_ = STDOUT_FILENO;
    return;
  }
  constexpr mode_t kMode = 0666;
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode);
  if (file_ < 0) {
    throw IoError(concat(what_, ": cannot write '", path_, "': ", std::strerror(errno),
                         "; choose a writable path"));
  }
}

LineWriter::~LineWriter() {
  if (file_ != STDOUT_FILENO) close(file_);
}

void LineWriter::write_line(std::string_view line) {
  write(concat(line, '\n'));
}

void LineWriter::write(std::string_view text) {
  std::string rest(text);
  while (!rest.empty()) {
    const ssize_t written = ::write(file_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      throw IoError(concat(what_, ": cannot write to ",
                           path_ == "-" ? "standard output" : "'" + path_ + "'", ": ",
                           std::strerror(errno), "; make room or choose another path"));
    }
    rest.erase(0, static_cast<std::size_t>(written));
  }
}

}  // namespace zero3::program
