#include "cpu/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <iterator>
#include <utility>

#include <zero3/error.h>
#include <zero3/internal/shared_place.h>
#include <zero3/memory.h>

namespace zero3 {
namespace {

/// The files of this process by the address at which they begin.
struct Files {
  std::mutex mutex;
  std::map<const std::byte*, internal::SharedPlace> by_address;
  std::uint32_t named = 0;
};

Files& files() {
  static Files all;
  return all;
}

}  // namespace

std::optional<internal::SharedPlace> internal::shared_place(const void* native) {
  const auto* address = static_cast<const std::byte*>(native);
  const std::scoped_lock lock(files().mutex);
  auto file = files().by_address.upper_bound(address);
  if (file == files().by_address.begin()) return std::nullopt;
  --file;
  SharedPlace place = file->second;
  place.offset = address - file->first;
  if (place.offset >= place.file_bytes) return std::nullopt;
  return place;
}

namespace cpu {

MemoryFile::MemoryFile(std::string owner, Bytes capacity)
    : owner_(std::move(owner)), capacity_(aligned(capacity)) {
  const auto size = static_cast<std::size_t>(capacity_.count());
  descriptor_ = memfd_create("zero3", MFD_CLOEXEC);
  void* mapped = MAP_FAILED;
  if (descriptor_ >= 0 && ftruncate(descriptor_, capacity_.count()) == 0) {
    mapped =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
  }
  if (mapped == MAP_FAILED) {
    if (descriptor_ >= 0) close(descriptor_);
    throw OutOfMemoryError(concat(owner_, " cannot map ", capacity_, "; give a smaller capacity"));
  }
  data_ = static_cast<std::byte*>(mapped);
  free_.emplace(0, capacity_.count());
  const std::scoped_lock lock(files().mutex);
  files().by_address[data_] = {
      .file = ++files().named, .descriptor = descriptor_, .file_bytes = capacity_.count()};
}

MemoryFile::~MemoryFile() {
  {
    const std::scoped_lock lock(files().mutex);
    files().by_address.erase(data_);
  }
  munmap(data_, static_cast<std::size_t>(capacity_.count()));
  close(descriptor_);
}

std::int64_t MemoryFile::take(Bytes size) {
  const std::scoped_lock lock(mutex_);
  // First fit.
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    const auto [offset, length] = *hole;
    if (length < size.count()) continue;
    free_.erase(hole);
    if (length > size.count()) free_.emplace(offset + size.count(), length - size.count());
    return offset;
  }
  throw OutOfMemoryError(concat(owner_, " of ", capacity_, " has no block of ", size, " left"));
}

void MemoryFile::give(std::int64_t offset, Bytes size) noexcept {
  fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size.count());
  const std::scoped_lock lock(mutex_);
  auto hole = free_.emplace(offset, size.count()).first;
  if (const auto next = std::next(hole);
      next != free_.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    free_.erase(next);
  }
  if (hole == free_.begin()) return;
  if (const auto previous = std::prev(hole); previous->first + previous->second == hole->first) {
    previous->second += hole->second;
    free_.erase(hole);
  }
}

}  // namespace cpu
}  // namespace zero3
