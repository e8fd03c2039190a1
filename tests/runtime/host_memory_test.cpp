#include <zero3/host_memory.h>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include <zero3/error.h>
#include "support/contains.h"
#include "support/temp_dir.h"
#include "support/thrown.h"

namespace zero3::test {
namespace {

constexpr std::int64_t kKiB = 1024;

/// A system's /proc and /sys, as far as host_budget() reads them.
class System {
 public:
  System() { write("proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 8000 kB\n"); }
  System& write(const std::string& name, const std::string& content) {
    std::filesystem::create_directories((dir_.path() / name).parent_path());
    dir_.write(name, content);
    return *this;
  }
  [[nodiscard]] HostBudget budget() const { return host_budget(false, dir_.path()); }

 private:
  TempDir dir_;
};

TEST(HostBudget, IsWhatTheSystemHasLeft) {
  const HostBudget budget = System().budget();
  EXPECT_EQ(budget.bytes, Bytes(8000 * kKiB));
  EXPECT_EQ(budget.bound, "MemAvailable");
}

TEST(HostBudget, ACgroupBindsAndTheFileCacheInItDoesNotCount) {
  System system;
  system.write("proc/self/cgroup", "0::/jobs/7\n")
      .write("sys/fs/cgroup/jobs/7/memory.max", "4000000\n")
      .write("sys/fs/cgroup/jobs/7/memory.current", "1500000\n")
      .write("sys/fs/cgroup/jobs/7/memory.stat", "anon 9\ninactive_file 500000\nactive_file 7\n");
  EXPECT_EQ(system.budget().bytes, Bytes(3000000));
  EXPECT_EQ(system.budget().bound, "the memory limit of cgroup /jobs/7");
}

TEST(HostBudget, TheTightestOfTheCgroupsAroundBinds) {
  System system;
  system.write("proc/self/cgroup", "0::/jobs/7\n")
      .write("sys/fs/cgroup/jobs/7/memory.max", "max\n")
      .write("sys/fs/cgroup/jobs/7/memory.current", "5\n")
      .write("sys/fs/cgroup/jobs/memory.max", "1000\n")
      .write("sys/fs/cgroup/jobs/memory.current", "400\n");
  EXPECT_EQ(system.budget().bytes, Bytes(600));
  EXPECT_EQ(system.budget().bound, "the memory limit of cgroup /jobs");
  system.write("sys/fs/cgroup/jobs/memory.current", "1400\n");
  EXPECT_EQ(system.budget().bytes, Bytes(0)) << "a group over its limit has nothing left";
}

TEST(HostBudget, VersionOneOfCgroupsAndAContainersViewAreRead) {
  System system;
  // The group's name is that outside of the container, whose mount begins at the group.
  system.write("proc/self/cgroup", "5:cpu,cpuacct:/else\n4:memory:/docker/abc\n")
      .write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n")
      .write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1500\n")
      .write("sys/fs/cgroup/memory/memory.stat", "cache 900\ntotal_inactive_file 300\n");
  EXPECT_EQ(system.budget().bytes, Bytes(800));
  EXPECT_EQ(system.budget().bound, "the memory limit of cgroup /");
}

TEST(HostBudget, WhatCannotBeReadSetsNoBound) {
  const TempDir empty;
  EXPECT_EQ(host_budget(false, empty.path()).bytes, Bytes(INT64_MAX));
  System system;
  system.write("proc/self/cgroup", "0::/gone\nno colon\n");
  EXPECT_EQ(system.budget().bound, "MemAvailable");
}

std::int64_t locked_kib() {
  std::ifstream file("/proc/self/status");
  std::string word;
  std::int64_t value = 0;
  while (file >> word) {
    if (word == "VmLck:" && file >> value) return value;
  }
  return 0;
}

// E5. In a process of its own that is not root, whom the limit does not bind.
TEST(HostBudget, MemoryThatIsLockedIsBoundByMemlock) {
  const auto in_child = [] {
    const rlimit limit = {.rlim_cur = 640 * kKiB, .rlim_max = 640 * kKiB};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 10;
    if (geteuid() == 0 && setuid(65534) != 0) return 11;
    const HostBudget budget = host_budget(true);
    if (budget.bytes > Bytes(640 * kKiB)) return 12;
    if (budget.bound != "the memlock limit (ulimit -l)") return 13;
    if (host_budget(false).bytes <= Bytes(640 * kKiB)) return 14;
    const HostSlab fits(Bytes(512 * kKiB), true);
    if (locked_kib() == 0) return 0;  // under a sanitizer, whose mlock does nothing
    const std::string refused =
        thrown<OutOfMemoryError>([] { const HostSlab slab(Bytes(512 * kKiB), true); });
    return contains(refused, {"lock 512.0 KiB", "ulimit -l"}) ? 0 : 15;
  };
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(in_child());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

/// Bytes of this process in memory.
std::int64_t resident() {
  std::int64_t size = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> size >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// E5
TEST(HostSlab, OfTwoGibAndABitTakesThatAndGivesItBack) {
  constexpr std::int64_t kSize = 2233382994;  // 2.08 GiB
  if (host_budget(false).bytes < Bytes(kSize + (std::int64_t{1} << 30)))
    GTEST_SKIP() << "this machine has no 3 GiB of memory left";
  const std::int64_t before = resident();
  constexpr std::int64_t kNoise = 16 << 20;
  {
    HostSlab slab(Bytes(kSize), false);
    EXPECT_EQ(slab.size(), Bytes(kSize));
    EXPECT_NEAR(static_cast<double>(resident() - before), static_cast<double>(kSize), kNoise);
    slab.data()[kSize - 1] = std::byte{1};
    const HostSlab moved = std::move(slab);
    EXPECT_EQ(moved.data()[kSize - 1], std::byte{1});
  }
  EXPECT_NEAR(static_cast<double>(resident()), static_cast<double>(before), kNoise);
}

TEST(HostSlab, OfNoBytesIsNone) {
  const HostSlab slab(Bytes(0), true);
  EXPECT_EQ(slab.data(), nullptr);
}

}  // namespace
}  // namespace zero3::test
