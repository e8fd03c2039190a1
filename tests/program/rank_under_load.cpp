// A rank of MPI that moves much, and checks it.
//   rank_under_load large auto|messages        one broadcast of more than 2^31 bytes
//   rank_under_load many COUNT auto|messages   COUNT small collectives; prints by how many KiB the
// process has grown since the first tenth of them
#include <zero3/zero3.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

/// Odd, so that no piece of it is a round number.
constexpr std::int64_t kLarge = (std::int64_t{1} << 31) + 12345;

void check(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

void move_much(zero3::Communicator& communicator, zero3::Stream& stream) {
  const zero3::Buffer bytes(zero3::Elements(kLarge), zero3::DType::kU8,
                            zero3::MemoryTag::kWorkspace, stream);
  const auto values = bytes.view().host_span<std::uint8_t>();
  const auto value = [](std::size_t i) { return static_cast<std::uint8_t>(i * 2654435761U >> 13); };
  stream.call("fill", [&] {
    for (std::size_t i = 0; i < values.size() && communicator.rank() == 0; ++i)
      values[i] = value(i);
  });
  communicator.broadcast(bytes.view(), 0, "large", stream);
  stream.synchronize();
  for (std::size_t i = 0; i < values.size(); ++i) check(values[i] == value(i), "a byte is another");
}

std::int64_t resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
  }
  return 0;
}

void move_often(zero3::Communicator& communicator, zero3::Stream& stream, int count) {
  const auto allocate = [&](std::int64_t size) {
    zero3::Buffer buffer(zero3::Elements(size), zero3::DType::kF32, zero3::MemoryTag::kWorkspace,
                         stream);
    zero3::fill_zero(buffer.view(), stream);
    return buffer;
  };
  const zero3::Buffer shard = allocate(16), full = allocate(16 * communicator.world_size());
  std::int64_t before = 0;
  for (int i = 0; i < count; ++i) {
    if (i % 2 == 0) {
      communicator.all_gather(full.view(), shard.view(), "weights", stream);
    } else {
      communicator.reduce_scatter(shard.view(), full.view(), {}, "gradients", stream);
    }
    if (i % 100 == 0 || i == count / 10) stream.synchronize();
    if (i == count / 10) before = resident_kib();
  }
  stream.synchronize();
  std::printf("rank %d grew by %lld KiB\n", communicator.rank(),
              static_cast<long long>(resident_kib() - before));
}

}  // namespace

int main(int, char** arguments) {
  const std::string mode = arguments[1];
  const std::string path = arguments[mode == "many" ? 3 : 2];
  try {
    const auto communicator = zero3::make_mpi_communicator(
        zero3::resolve_launch(zero3::read_environment()),
        {.path = path == "messages" ? zero3::MpiPath::kMessages : zero3::MpiPath::kAuto});
    const auto device = zero3::make_device({.threads = 1, .shared = true});
    const auto stream = device->make_stream({.name = "comm"});
    if (mode == "many") {
      move_often(*communicator, *stream, std::stoi(arguments[2]));
    } else {
      move_much(*communicator, *stream);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
