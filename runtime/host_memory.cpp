#include <zero3/host_memory.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include <zero3/error.h>

namespace zero3 {
namespace {

namespace fs = std::filesystem;

/// The whole number at the beginning of a file; none for "max" and for files that are not there.
std::optional<std::int64_t> number_in(const fs::path& path) {
  std::int64_t value = 0;
  if (std::ifstream(path) >> value) return value;
  return std::nullopt;
}

/// The number behind `key` in a file of lines "key number".
std::optional<std::int64_t> number_of(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    std::int64_t value = 0;
    if (words >> word >> value && word == key) return value;
  }
  return std::nullopt;
}

void tighten(HostBudget& budget, std::int64_t bytes, const std::string& bound) {
  const Bytes left(std::max<std::int64_t>(0, bytes));
  if (left < budget.bytes) budget = {left, bound};
}

/// How a version of cgroups calls what is needed here.
struct CgroupFiles {
  const char *limit, *usage, *reclaimable;
};

/// A file cache that the kernel would drop is no use of memory that matters.
void tighten_by_cgroups(HostBudget& budget, const fs::path& mount, const fs::path& group,
                        const CgroupFiles& files) {
  // A container may see its own group as the root of the mount.
  fs::path inner = fs::exists(mount / group.relative_path()) ? group : "/";
  while (true) {
    const fs::path directory = mount / inner.relative_path();
    const auto limit = number_in(directory / files.limit);
    const auto usage = number_in(directory / files.usage);
    if (limit && usage) {
      const auto cache = number_of(directory / "memory.stat", files.reclaimable).value_or(0);
      tighten(budget, *limit - *usage + cache,
              concat("the memory limit of cgroup ", inner.string()));
    }
    if (inner == inner.parent_path()) return;
    inner = inner.parent_path();
  }
}

void tighten_by_cgroups(HostBudget& budget, const fs::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {  // "4:memory:/jobs/7", version 2: "0::/jobs/7"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    const fs::path mount = root / "sys/fs/cgroup";
    if (controllers.empty()) {
      tighten_by_cgroups(budget, mount, group, {"memory.max", "memory.current", "inactive_file"});
    } else if (concat(',', controllers, ',').find(",memory,") != std::string::npos) {
      tighten_by_cgroups(budget, mount / "memory", group,
                         {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"});
    }
  }
}

void tighten_by_memlock(HostBudget& budget, const fs::path& root) {
  rlimit limit = {};
  if (geteuid() == 0 || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return;
  const auto locked = number_of(root / "proc/self/status", "VmLck:").value_or(0) * 1024;
  tighten(budget, static_cast<std::int64_t>(limit.rlim_cur) - locked,
          "the memlock limit (ulimit -l)");
}

}  // namespace

HostBudget host_budget(bool locked, const fs::path& root) {
  HostBudget budget{.bound = "nothing"};
  try {
    if (const auto available = number_of(root / "proc/meminfo", "MemAvailable:"))
      tighten(budget, *available * 1024, "MemAvailable");
    tighten_by_cgroups(budget, root);
    if (locked) tighten_by_memlock(budget, root);
  } catch (const std::exception&) {
    // What cannot be read sets no bound.
  }
  return budget;
}

HostSlab::HostSlab(Bytes size, bool locked) : size_(size) {
  if (size.count() == 0) return;
  const auto length = static_cast<std::size_t>(size.count());
  void* mapped = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED)
    throw OutOfMemoryError(concat("the system has no ", size, " of host memory for a slab"));
  data_ = static_cast<std::byte*>(mapped);
  if (!locked || mlock(data_, length) == 0) return;
  const int error = errno;
  munmap(data_, length);
  throw OutOfMemoryError(concat("cannot lock ", size, " of host memory: ", std::strerror(error),
                                "; raise the memlock limit (ulimit -l)"));
}

HostSlab::HostSlab(HostSlab&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, Bytes(0))) {}

HostSlab& HostSlab::operator=(HostSlab&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

HostSlab::~HostSlab() {
  if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(size_.count()));
}

}  // namespace zero3
