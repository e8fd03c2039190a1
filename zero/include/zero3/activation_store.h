#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <zero3/device.h>
#include <zero3/memory_plan.h>
#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// Where layer inputs wait for the backward, and whether layers run again for it.
enum class CheckpointMode : std::uint8_t {
  kNone,       ///< on the device; layers keep what their backward needs as well
  kRecompute,  ///< on the device, and nothing else is kept: layers run again in the backward
  kHost,       ///< the same, in host memory
  kDisk,       ///< the same, in a file
};
inline constexpr CheckpointMode kCheckpointModes[] = {CheckpointMode::kNone,
                                                      CheckpointMode::kRecompute,
                                                      CheckpointMode::kHost, CheckpointMode::kDisk};
/// "none", "recompute", "host", "disk".
[[nodiscard]] std::string_view name_of(CheckpointMode mode);

struct ActivationCheckpoints {
  CheckpointMode mode = CheckpointMode::kNone;
  /// kDisk: where the file is made; it has no name there, and is gone with the process.
  std::string directory = {};
  /// kHost, kDisk: most bytes of host memory that a rank may take.
  Bytes host_limit{INT64_MAX};
  /// Host memory is kept from being swapped out, which the memlock limit (ulimit -l) bounds.
  bool lock_host_memory = false;

  [[nodiscard]] bool recompute() const { return mode != CheckpointMode::kNone; }
};

/// What a store moved.
struct OffloadCounters {
  Bytes to_host, from_host, to_disk, from_disk;
  /// Time in which tensors moved, in either direction, and time that the compute stream waited for
  /// it. Known once the streams have passed.
  double moving_seconds = 0, waited_seconds = 0;
};

/// Tensors of equal size, written 0, 1, … by a forward and read in descending order by its
/// backward, that wait outside device memory in between.
///
/// On the device there are two places: tensor i is written to place i mod 2 and read from there.
/// The two last tensors stay in them. The others move out on a stream of their own while the next
/// layer computes, and come back on another while the backward of the layer above runs. The modes
/// kNone and kRecompute, and kHost on a device whose memory is the host's, have a place for every
/// tensor and move nothing.
///
/// Device and compute stream outlive the store. One host thread calls. Errors of the movement come
/// out of the compute stream.
class ActivationStore {
 public:
  /// `count` tensors of at most `size` elements. Throws UsageError for a directory without kDisk,
  /// and for kDisk without one.
  ActivationStore(Device& device, Stream& compute, ActivationCheckpoints options,
                  std::int64_t count, Elements size, DType dtype);
  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;
  ~ActivationStore();

  /// Device memory; before build() too, as the others.
  [[nodiscard]] MemoryPlan plan() const;
  /// Host memory: all tensors that move in kHost, a buffer for each direction in kDisk.
  [[nodiscard]] Bytes host_bytes() const;
  /// The same as build() has taken it.
  [[nodiscard]] Bytes host_bytes_in_use() const;
  /// Of the file.
  [[nodiscard]] Bytes disk_bytes() const;
  /// Tensors that move in each pass.
  [[nodiscard]] std::int64_t moving() const;
  /// Why nothing moves though the mode says so, or what is slower than it could be; empty: neither.
  [[nodiscard]] std::string remark() const;
  /// Allocates everything. Throws UsageError where host memory exceeds a limit (with its name and
  /// both figures) and where the directory cannot take the file.
  void build();

  /// Begins a pass over tensors of `size` elements. What a pass before has left is dropped.
  void begin(Elements size);
  /// Where tensor `index` is to be written by what is enqueued on compute from now on.
  [[nodiscard]] TensorView place(std::int64_t index);
  /// Tensor `index` has been written, is only read from now on, and will be taken. In ascending
  /// order from 0. Never called, a pass stores nothing.
  void put(std::int64_t index);
  /// Tensor `index` for what is enqueued on compute from now on, until the next call; in descending
  /// order from the last one. The one below begins to come back. Throws UsageError for a tensor
  /// that is not stored.
  [[nodiscard]] TensorView take(std::int64_t index);

  [[nodiscard]] OffloadCounters counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero3
