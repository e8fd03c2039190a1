#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string_view>

#include <zero3/stream.h>
#include <zero3/units.h>

namespace zero3 {

/// What a block of device memory is for. Plans, limits and measurements are kept by tag.
enum class MemoryTag : std::uint8_t {
  kShards,       ///< own parts of the fp32 master weights
  kGathered,     ///< full parameters of the groups in use
  kGrads,        ///< gradient shards and full gradient slots
  kOptimizer,    ///< moments
  kActivations,  ///< what a layer keeps for its backward, and the tensors between layers
  kCheckpoints,  ///< layer inputs that are kept for recomputation
  kWorkspace,    ///< scratch of kernels
};
inline constexpr std::size_t kMemoryTagCount = 7;
[[nodiscard]] std::string_view name_of(MemoryTag tag);
std::ostream& operator<<(std::ostream& out, MemoryTag tag);

/// Bytes by tag.
struct MemoryByTag {
  std::array<Bytes, kMemoryTagCount> bytes{};

  [[nodiscard]] Bytes& operator[](MemoryTag tag) { return bytes[static_cast<std::size_t>(tag)]; }
  [[nodiscard]] Bytes operator[](MemoryTag tag) const {
    return bytes[static_cast<std::size_t>(tag)];
  }
  [[nodiscard]] Bytes total() const;
  friend bool operator==(const MemoryByTag&, const MemoryByTag&) = default;
};

/// Source of device memory, ordered by streams: a block may be used by operations enqueued on
/// `stream` after `allocate`, and no longer by those enqueued anywhere after `deallocate`.
/// Resources compose: each wrapper forwards to an upstream that outlives it. Thread-safe.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  MemoryResource(const MemoryResource&) = delete;
  MemoryResource& operator=(const MemoryResource&) = delete;

  /// A block of `size` bytes (a multiple of kAlignment) at a multiple of kAlignment; null for 0
  /// bytes. Contents are indeterminate. Throws OutOfMemoryError.
  [[nodiscard]] virtual void* allocate(Bytes size, MemoryTag tag, Stream& stream) = 0;
  /// Gives a block back: it may be reused after what is enqueued on `stream` so far.
  virtual void deallocate(void* block, Bytes size, MemoryTag tag, Stream& stream) noexcept = 0;

 protected:
  MemoryResource() = default;
};

}  // namespace zero3
