#pragma once

#include <cstddef>
#include <vector>

#include <zero3/param_spec.h>
#include <zero3/units.h>

namespace zero3 {

/// Shards are multiples of this, so the blocks of the global norm never straddle ranks.
inline constexpr std::int64_t kShardBlock = 1024;
/// Parameters start at multiples of this within a flat buffer: 64 bytes in the narrowest dtype that
/// is gathered.
inline constexpr std::int64_t kParamAlignment = 32;

/// Elements that each rank owns of a flat buffer of `size`: ceil(size / (N · 1024)) · 1024. The
/// last ranks' parts are padded with zeros, or all padding.
[[nodiscard]] constexpr Elements shard_size(Elements size, int world_size) {
  return Elements(div_ceil(size.count(), world_size * kShardBlock) * kShardBlock);
}

/// Elements [begin, end) of a flat buffer.
struct ElementRange {
  Elements begin, end;
  [[nodiscard]] constexpr Elements size() const { return begin < end ? end - begin : Elements(0); }
  friend constexpr bool operator==(ElementRange, ElementRange) = default;
};
[[nodiscard]] constexpr ElementRange intersect(ElementRange a, ElementRange b) {
  return {a.begin < b.begin ? b.begin : a.begin, a.end < b.end ? a.end : b.end};
}
/// What `rank` owns.
[[nodiscard]] constexpr ElementRange shard_range(Elements size, int rank, int world_size) {
  const Elements each = shard_size(size, world_size);
  return {each * rank, each * (rank + 1)};
}

/// What a rank owns of one parameter: `size` elements, from where on in its shard, and in the
/// parameter.
struct ParamPart {
  Elements in_shard, in_param, size;
};

/// The parameters of a group that share dtype and trainability: one flat buffer, sharded as a
/// whole.
struct SubGroupLayout {
  DType dtype = DType::kF32;
  bool trainable = true;
  /// Indices into GroupSpec::params, ascending, and where each starts in the flat buffer.
  std::vector<int> params;
  std::vector<Elements> offsets;
  /// Of the flat buffer without its padding to whole shards.
  Elements size;
  /// Of each rank's part.
  Elements shard;

  [[nodiscard]] Elements padded(int world_size) const { return shard * world_size; }
  /// What `rank` owns of params[index], which has `param_size` elements; all zeros if nothing.
  [[nodiscard]] ParamPart part(std::size_t index, Elements param_size, int rank) const;
};

/// Where a parameter lies.
struct ParamPlace {
  int sub_group = 0;
  Elements offset;
};

struct GroupLayout {
  std::vector<SubGroupLayout> sub_groups;
  /// One per parameter of the group.
  std::vector<ParamPlace> places;
};

/// Sub-groups in the order of their first parameter; parameters in order, each at the next multiple
/// of kParamAlignment.
[[nodiscard]] GroupLayout make_layout(const GroupSpec& group, DType default_dtype, int world_size);

}  // namespace zero3
