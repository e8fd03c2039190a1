#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <zero3/activation_store.h>
#include <zero3/copy.h>
#include <zero3/internal/cpu_stream.h>
#include "support/temp_dir.h"

namespace zero3::test {

inline constexpr std::int64_t kCount = 5, kSize = 1500;

[[nodiscard]] inline ActivationCheckpoints checkpoints(CheckpointMode mode, const TempDir& dir) {
  ActivationCheckpoints options{.mode = mode};
  if (mode == CheckpointMode::kDisk) options.directory = dir.path().string();
  return options;
}

/// Writes and reads as a stack of layers does; a tensor's elements are its number and the pass's.
class Passes {
 public:
  Passes(ActivationStore& store, Stream& compute) : store_(store), compute_(compute) {}

  void forward(float pass, std::int64_t size = kSize, bool training = true) {
    store_.begin(Elements(size));
    for (std::int64_t i = 0; i < kCount; ++i) {
      fill(store_.place(i), pass * 100 + static_cast<float>(i));
      if (training) store_.put(i);
    }
  }
  /// What was read, in the order of reading.
  std::vector<std::vector<float>> backward(std::int64_t size = kSize) {
    std::vector<std::vector<float>> read(kCount,
                                         std::vector<float>(static_cast<std::size_t>(size)));
    for (std::int64_t i = kCount; i-- > 0;)
      copy_to_host(read[static_cast<std::size_t>(i)].data(), store_.take(i), compute_);
    compute_.synchronize();
    return read;
  }
  static std::vector<std::vector<float>> expected(float pass, std::int64_t size = kSize) {
    std::vector<std::vector<float>> values;
    for (std::int64_t i = 0; i < kCount; ++i) {
      fill(values.emplace_back(static_cast<std::size_t>(size)).data(), size,
           pass * 100 + static_cast<float>(i));
    }
    return values;
  }

 private:
  void fill(const TensorView& place, float value) {
    compute_.call("fill", [out = internal::native<float>(place), n = place.count(), value] {
      fill(out, n, value);
    });
  }
  /// No two pieces of a disk's chunk are alike, and no two chunks.
  static void fill(float* out, std::int64_t count, float value) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = value + static_cast<float>(i / 1000) / 4096;
  }

  ActivationStore& store_;
  Stream& compute_;
};

}  // namespace zero3::test
