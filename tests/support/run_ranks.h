#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <zero3/buffer.h>
#include <zero3/copy.h>
#include <zero3/device.h>
#include <zero3/internal/cpu_stream.h>
#include <zero3/local_world.h>

namespace zero3::test {

struct RanksOptions {
  /// Set: all ranks and all their streams take turns on one stepped executor with this seed.
  /// Not set: every stream has a thread.
  std::optional<std::uint64_t> seed = std::nullopt;
  DeviceKind kind = DeviceKind::kCpu;
  /// Of the threaded executor; the stepped one reports a deadlock at once.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  Trace* trace = nullptr;
  /// Set: makes the ends of another world of that size, by rank, in place of a local one.
  std::function<std::function<std::unique_ptr<Communicator>(int rank)>(int world_size)> world =
      nullptr;
};

/// What one rank of a test has: a device with poisoned memory, a stream and a communicator.
struct Rank {
  Rank(std::unique_ptr<Communicator> end, const RanksOptions& options,
       internal::SteppedExecutor* stepped)
      : rank(end->rank()), world_size(end->world_size()), communicator(nullptr) {
    const DeviceOptions device_options{.kind = options.kind,
                                       .threads = 1,
                                       .capacity = Bytes(1 << 28),
                                       .shared = options.world != nullptr,
                                       .poison = true,
                                       .trace = options.trace,
                                       .rank = rank};
    device = stepped != nullptr ? internal::make_cpu_device(device_options, *stepped)
                                : make_device(device_options);
    stream = device->make_stream({.name = "stream"});
    communicator = std::move(end);
  }

  template <class T>
  [[nodiscard]] Buffer upload(const std::vector<T>& values) const {
    Buffer buffer = allocate(static_cast<std::int64_t>(values.size()), kDTypeOf<T>);
    copy_from_host(buffer.view(), values.data(), *stream);
    stream->synchronize();
    return buffer;
  }
  [[nodiscard]] Buffer allocate(std::int64_t count, DType dtype = DType::kF32) const {
    return Buffer(Elements(count), dtype, MemoryTag::kWorkspace, *stream);
  }
  template <class T>
  [[nodiscard]] std::vector<T> download(const TensorView& view) const {
    std::vector<T> values(static_cast<std::size_t>(view.count()));
    copy_to_host(values.data(), view, *stream);
    stream->synchronize();
    return values;
  }

  int rank, world_size;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  /// Destroyed first, and before that it may be taken, or be wrapped.
  std::unique_ptr<Communicator> communicator;
};

/// Runs `rank_main` for every rank of a local world, each on a host thread of its own, and rethrows
/// the first error. What a rank throws aborts the others.
inline void run_ranks(int world_size, const std::function<void(Rank&)>& rank_main,
                      const RanksOptions& options = {}) {
  std::unique_ptr<internal::SteppedExecutor> stepped;
  if (options.seed) stepped = internal::make_stepped_executor(*options.seed);
  LocalWorld world(world_size, options.timeout);
  std::function<std::unique_ptr<Communicator>(int)> other_end;
  if (options.world) other_end = options.world(world_size);
  world.run([&](std::unique_ptr<Communicator> end) {
    std::optional<internal::SteppedExecutor::HostTurn> turn;
    if (stepped) turn.emplace(*stepped, end->rank(), world_size);
    // The local world only runs the ranks then, and learns who failed first.
    std::unique_ptr<Communicator> runner;
    if (other_end) {
      runner = std::move(end);
      end = other_end(runner->rank());
    }
    Rank rank(std::move(end), options, stepped.get());
    try {
      rank_main(rank);
    } catch (const std::exception& error) {
      if (runner) runner->abort(error.what());
      // Before the streams are emptied, which may need the others to let go.
      if (rank.communicator) rank.communicator->abort(error.what());
      throw;
    }
  });
}

/// Names test cases whose parameter is a seed: "Threaded", "Stepped3".
[[nodiscard]] inline std::string executor_name(
    const ::testing::TestParamInfo<std::optional<std::uint64_t>>& test_case) {
  return test_case.param ? concat("Stepped", *test_case.param) : "Threaded";
}

/// The message of the `Error` that `call` throws; "nothing was thrown" otherwise.
template <class Error, class Call>
[[nodiscard]] std::string message_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// The message of a UsageError.
template <class Call>
[[nodiscard]] std::string usage_error(Call&& call) {
  return message_of<UsageError>(std::forward<Call>(call));
}

}  // namespace zero3::test
