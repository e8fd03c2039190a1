#include "offload_tier.h"

#include <algorithm>
#include <atomic>

#include <zero3/copy.h>
#include <zero3/error.h>
#include <zero3/host_memory.h>
#include "offload_file.h"

namespace zero3 {
namespace {

/// For direct I/O, and so that no two tensors share a page.
Bytes stride_of(Bytes tensor_bytes) {
  return Bytes(round_up(tensor_bytes.count(), kAlignment));
}

HostSlab make_slab(const ActivationCheckpoints& options, Bytes bytes) {
  ZERO3_CHECK(bytes <= options.host_limit, "layer inputs need ", bytes,
              " of host memory on a rank and the limit is ", options.host_limit,
              "; raise the limit, or make sequence or batch smaller");
  const HostBudget budget = host_budget(options.lock_host_memory);
  ZERO3_CHECK(bytes <= budget.bytes, "layer inputs need ", bytes, " of host memory on a rank and ",
              budget.bound, " leaves ", budget.bytes,
              "; raise it, make sequence or batch smaller, or let layer inputs wait on disk");
  return {bytes, options.lock_host_memory};
}

class HostTier final : public OffloadTier {
 public:
  HostTier(const ActivationCheckpoints& options, std::int64_t count, Bytes tensor_bytes)
      : stride_(stride_of(tensor_bytes)),
        slab_(make_slab(options, host_tier_bytes(count, tensor_bytes))) {}

  void store(std::int64_t index, const TensorView& source, Stream& out) override {
    copy_to_host(slab_.data() + index * stride_.count(), source, out);
  }
  void load(std::int64_t index, const TensorView& target, Stream& in) override {
    copy_from_host(target, slab_.data() + index * stride_.count(), in);
  }
  [[nodiscard]] Bytes host_bytes() const override { return slab_.size(); }

 private:
  Bytes stride_;
  HostSlab slab_;
};

/// Of a direction; an input may have fewer.
std::int64_t slots_for(Bytes tensor_bytes) {
  return std::min(OffloadFile::kSlots, div_ceil(tensor_bytes.count(), OffloadFile::kChunkBytes));
}

Bytes slot_bytes(Bytes tensor_bytes) {
  return Bytes(
      round_up(std::min(OffloadFile::kChunkBytes, tensor_bytes.count()), OffloadFile::kBlockBytes));
}

/// Chunks pass through buffers, as direct I/O wants its own alignment: one for each slot of each
/// direction, so that the disk works while chunks before and after are copied and summed.
class DiskTier final : public OffloadTier {
 public:
  DiskTier(const ActivationCheckpoints& options, std::int64_t count, Bytes tensor_bytes)
      : slot_bytes_(slot_bytes(tensor_bytes)),
        slab_(make_slab(options, disk_tier_bytes(count, tensor_bytes))),
        file_(options.directory, count, tensor_bytes),
        directory_(options.directory) {}

  void store(std::int64_t index, const TensorView& source, Stream& out) override {
    const std::int64_t chunks = chunks_of(source);
    const auto finish = [&](std::int64_t number) {
      call(out, "write", &OffloadFile::finish_write, chunk(slab_.data(), index, number, source));
    };
    for (std::int64_t i = 0; i < chunks; ++i) {
      if (i >= kSlots) finish(i - kSlots);
      const OffloadChunk next = chunk(slab_.data(), index, i, source);
      copy_to_host(next.data, part(source, i), out);
      call(out, "start of write", &OffloadFile::start_write, next);
    }
    for (std::int64_t i = std::max<std::int64_t>(0, chunks - kSlots); i < chunks; ++i) finish(i);
  }
  void load(std::int64_t index, const TensorView& target, Stream& in) override {
    std::byte* buffers = slab_.data() + slab_.size().count() / 2;
    const std::int64_t chunks = chunks_of(target);
    const auto start = [&](std::int64_t number) {
      call(in, "start of read", &OffloadFile::start_read, chunk(buffers, index, number, target));
    };
    for (std::int64_t i = 0; i < std::min(kSlots, chunks); ++i) start(i);
    for (std::int64_t i = 0; i < chunks; ++i) {
      const OffloadChunk next = chunk(buffers, index, i, target);
      call(in, "read", &OffloadFile::finish_read, next);
      copy_from_host(part(target, i), next.data, in);
      if (i + kSlots < chunks) start(i + kSlots);
    }
  }
  [[nodiscard]] Bytes host_bytes() const override { return slab_.size(); }
  bool take_failure() override { return failed_.exchange(false); }
  std::string remark() const override {
    if (file_.direct()) return {};
    return concat("the file system of '", directory_,
                  "' has no direct I/O: layer inputs pass through the page cache");
  }

 private:
  static constexpr std::int64_t kSlots = OffloadFile::kSlots;

  static std::int64_t chunks_of(const TensorView& tensor) {
    return div_ceil(tensor.bytes().count(), OffloadFile::kChunkBytes);
  }
  static TensorView part(const TensorView& tensor, std::int64_t number) {
    const std::int64_t length = OffloadFile::kChunkBytes / size_of(tensor.dtype());
    const std::int64_t begin = number * length;
    return tensor.slice(begin, std::min(length, tensor.count() - begin));
  }
  [[nodiscard]] OffloadChunk chunk(std::byte* buffers, std::int64_t tensor, std::int64_t number,
                                   const TensorView& view) const {
    return {tensor, number, buffers + (number % kSlots) * slot_bytes_.count(),
            part(view, number).bytes().count()};
  }
  void call(Stream& stream, std::string_view name, void (OffloadFile::*step)(const OffloadChunk&),
            const OffloadChunk& chunk) {
    stream.call(name, [this, step, chunk] {
      try {
        (file_.*step)(chunk);
      } catch (...) {
        failed_ = true;
        throw;
      }
    });
  }

  Bytes slot_bytes_;
  /// Outlives the file, which ends what is still under way.
  HostSlab slab_;
  OffloadFile file_;
  std::string directory_;
  std::atomic<bool> failed_ = false;
};

}  // namespace

Bytes host_tier_bytes(std::int64_t count, Bytes tensor_bytes) {
  return stride_of(tensor_bytes) * count;
}

Bytes disk_tier_bytes(std::int64_t count, Bytes tensor_bytes) {
  if (count == 0) return Bytes(0);
  return slot_bytes(tensor_bytes) * slots_for(tensor_bytes) * 2;
}

std::unique_ptr<OffloadTier> make_host_tier(const ActivationCheckpoints& options,
                                            std::int64_t count, Bytes tensor_bytes) {
  return std::make_unique<HostTier>(options, count, tensor_bytes);
}

std::unique_ptr<OffloadTier> make_disk_tier(const ActivationCheckpoints& options,
                                            std::int64_t count, Bytes tensor_bytes) {
  return std::make_unique<DiskTier>(options, count, tensor_bytes);
}

}  // namespace zero3
