#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace zero3::test {

/// A file that this process has open and no directory knows.
struct OpenFile {
  std::filesystem::path path;  ///< in /proc/self/fd
  std::int64_t bytes = 0, allocated = 0;
};

/// Those that were made in `directory`.
inline std::vector<OpenFile> nameless_files_in(const std::filesystem::path& directory) {
  std::vector<OpenFile> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    const bool inside = target.rfind(directory.string() + "/", 0) == 0;
    if (!inside || target.find(" (deleted)") == std::string::npos) continue;
    struct stat status = {};
    if (stat(entry.path().c_str(), &status) == 0)
      files.push_back({entry.path(), status.st_size, status.st_blocks * 512});
  }
  return files;
}

/// Changes the byte at `offset`; a second call restores it.
inline void flip_byte(const OpenFile& file, std::int64_t offset) {
  const int descriptor = open(file.path.c_str(), O_RDWR | O_CLOEXEC);
  char byte = 0;
  const bool read = pread(descriptor, &byte, 1, offset) == 1;
  byte = static_cast<char>(byte ^ 0x10);
  const bool written = read && pwrite(descriptor, &byte, 1, offset) == 1;
  close(descriptor);
  if (!written) throw std::runtime_error("cannot change a byte of " + file.path.string());
}

/// While it lives, no write goes beyond that many bytes of a file: a disk that is full there.
class LargestFile {
 public:
  explicit LargestFile(std::int64_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(bytes);
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~LargestFile() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  LargestFile(const LargestFile&) = delete;
  LargestFile& operator=(const LargestFile&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_ = {};
};

}  // namespace zero3::test
