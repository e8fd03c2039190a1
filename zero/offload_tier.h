#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <zero3/activation_store.h>
#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// Where tensors wait outside device memory. Tensor `index` has been stored, in stream order,
/// before it is loaded.
class OffloadTier {
 public:
  virtual ~OffloadTier() = default;
  OffloadTier(const OffloadTier&) = delete;
  OffloadTier& operator=(const OffloadTier&) = delete;

  /// Enqueues the movement of a tensor's first view.size() elements.
  virtual void store(std::int64_t index, const TensorView& source, Stream& out) = 0;
  virtual void load(std::int64_t index, const TensorView& target, Stream& in) = 0;
  /// Whether a movement has failed since the last call.
  [[nodiscard]] virtual bool take_failure() { return false; }
  /// Of host memory, as it has been taken.
  [[nodiscard]] virtual Bytes host_bytes() const = 0;
  [[nodiscard]] virtual std::string remark() const { return {}; }

 protected:
  OffloadTier() = default;
};

/// Host memory that a tier for `count` tensors takes.
[[nodiscard]] Bytes host_tier_bytes(std::int64_t count, Bytes tensor_bytes);
[[nodiscard]] Bytes disk_tier_bytes(std::int64_t count, Bytes tensor_bytes);

/// Both throw UsageError where host_budget() or the options' limit is exceeded.
[[nodiscard]] std::unique_ptr<OffloadTier> make_host_tier(const ActivationCheckpoints& options,
                                                          std::int64_t count, Bytes tensor_bytes);
[[nodiscard]] std::unique_ptr<OffloadTier> make_disk_tier(const ActivationCheckpoints& options,
                                                          std::int64_t count, Bytes tensor_bytes);

}  // namespace zero3
