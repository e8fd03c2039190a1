#include <zero3/internal/shared_place.h>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include <zero3/buffer.h>
#include <zero3/device.h>
#include <zero3/internal/cpu_stream.h>

namespace zero3 {
namespace {

using internal::shared_place;

constexpr Bytes kSize{1 << 20};

/// A device with a buffer of `kSize` that holds sevens.
struct Sevens {
  explicit Sevens(const DeviceOptions& options)
      : device(make_device(options)),
        stream(device->make_stream({})),
        buffer(Elements(kSize.count()), DType::kU8, MemoryTag::kShards, *stream),
        native(internal::native_data(buffer.view())) {
    stream->call("fill", [data = native] { std::memset(data, 7, kSize.count()); });
    stream->synchronize();
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  Buffer buffer;
  void* native;
};

class SharedPlace : public testing::TestWithParam<DeviceKind> {
 protected:
  DeviceOptions options() const {
    return {.kind = GetParam(), .threads = 1, .capacity = kSize * 4, .shared = true};
  }
};

TEST_P(SharedPlace, IsWhereAnotherMappingFindsTheSameBytes) {
  const Sevens sevens(options());
  const auto place = shared_place(sevens.native);
  ASSERT_TRUE(place.has_value());
  const std::string path = "/proc/self/fd/" + std::to_string(place->descriptor);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  const auto size = static_cast<std::size_t>(place->file_bytes);
  auto* mapped = static_cast<std::byte*>(mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0));
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EQ(mapped[place->offset], std::byte{7});
  EXPECT_EQ(mapped[place->offset + kSize.count() - 1], std::byte{7});
  munmap(mapped, size);
  close(file);
}

TEST_P(SharedPlace, CountsBytesWithinAFile) {
  const Sevens sevens(options());
  const auto* first = static_cast<const std::byte*>(sevens.native);
  EXPECT_EQ(shared_place(first + 5)->offset, shared_place(first)->offset + 5);
  EXPECT_EQ(shared_place(first + 5)->file, shared_place(first)->file);
}

TEST_P(SharedPlace, OfEachDeviceIsAFileOfItsOwn) {
  const Sevens a(options());
  const Sevens b(options());
  EXPECT_NE(shared_place(a.native)->file, shared_place(b.native)->file);
}

TEST_P(SharedPlace, EndsWithItsDevice) {
  const void* address = Sevens(options()).native;
  EXPECT_FALSE(shared_place(address).has_value());
}

INSTANTIATE_TEST_SUITE_P(, SharedPlace, testing::Values(DeviceKind::kCpu, DeviceKind::kCpuSim),
                         [](const auto& test) {
                           return test.param == DeviceKind::kCpu ? "Cpu" : "CpuSim";
                         });

TEST(SharedPlaceOfPrivateMemory, IsNone) {
  const Sevens sevens({.kind = DeviceKind::kCpu, .threads = 1});
  EXPECT_FALSE(shared_place(sevens.native).has_value());
}

/// Kilobytes of this process that are mapped from files in memory.
std::int64_t resident_shared() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssShmem:")) return std::stoll(line.substr(9));
  }
  return -1;
}

TEST(SharedDevice, GivesPagesBack) {
  Sevens sevens({.kind = DeviceKind::kCpu, .threads = 1, .shared = true});
  const std::int64_t before = resident_shared();
  sevens.buffer.reset();
  sevens.device->pool().trim();
  EXPECT_LE(resident_shared(), before - kSize.count() / 1024 + 8);
}

}  // namespace
}  // namespace zero3
