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

/// Chunks pass through a buffer for each direction, as direct I/O wants its own alignment.
class DiskTier final : public OffloadTier {
 public:
  DiskTier(const ActivationCheckpoints& options, std::int64_t count, Bytes tensor_bytes)
      : file_(options.directory, count, tensor_bytes),
        slab_(make_slab(options, disk_tier_bytes(count, tensor_bytes))),
        directory_(options.directory) {}

  void store(std::int64_t index, const TensorView& source, Stream& out) override {
    std::byte* buffer = slab_.data();
    for_chunks(source, [&](std::int64_t number, const TensorView& chunk) {
      copy_to_host(buffer, chunk, out);
      out.call("write", [=, this, bytes = chunk.bytes().count()] {
        noting_failure([&] { file_.write(index, number, buffer, bytes); });
      });
    });
  }
  void load(std::int64_t index, const TensorView& target, Stream& in) override {
    std::byte* buffer = slab_.data() + slab_.size().count() / 2;
    for_chunks(target, [&](std::int64_t number, const TensorView& chunk) {
      in.call("read", [=, this, bytes = chunk.bytes().count()] {
        noting_failure([&] { file_.read(index, number, buffer, bytes); });
      });
      copy_from_host(chunk, buffer, in);
    });
  }
  [[nodiscard]] Bytes host_bytes() const override { return slab_.size(); }
  bool take_failure() override { return failed_.exchange(false); }
  std::string remark() const override {
    if (file_.direct()) return {};
    return concat("the file system of '", directory_,
                  "' has no direct I/O: layer inputs pass through the page cache");
  }

 private:
  template <class Use>
  static void for_chunks(const TensorView& tensor, Use use) {
    const std::int64_t length = OffloadFile::kChunkBytes / size_of(tensor.dtype());
    for (std::int64_t number = 0; number * length < tensor.count(); ++number) {
      const std::int64_t begin = number * length;
      use(number, tensor.slice(begin, std::min(length, tensor.count() - begin)));
    }
  }
  template <class Transfer>
  void noting_failure(Transfer transfer) {
    try {
      transfer();
    } catch (...) {
      failed_ = true;
      throw;
    }
  }

  OffloadFile file_;
  HostSlab slab_;
  std::string directory_;
  std::atomic<bool> failed_ = false;
};

}  // namespace

Bytes host_tier_bytes(std::int64_t count, Bytes tensor_bytes) {
  return stride_of(tensor_bytes) * count;
}

Bytes disk_tier_bytes(std::int64_t count, Bytes tensor_bytes) {
  if (count == 0) return Bytes(0);
  const std::int64_t chunk = std::min(OffloadFile::kChunkBytes, tensor_bytes.count());
  return Bytes(round_up(chunk, OffloadFile::kBlockBytes) * 2);
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
