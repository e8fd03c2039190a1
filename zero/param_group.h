#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <zero3/buffer.h>
#include <zero3/options.h>
#include <zero3/shard_layout.h>

namespace zero3 {

/// This rank's part of one flat buffer, and the full copies that exist for a while.
struct SubGroup {
  SubGroupLayout layout;
  /// The fp32 master itself serves as the full copy: one rank, gathered in fp32.
  bool master_is_full = false;

  Buffer master;    ///< fp32, layout.shard elements; so are the next three, of trainable sub-groups
  Buffer grad;      ///< accumulator of the left fold
  Buffer m, v;      ///< AdamW's moments
  Buffer gathered;  ///< full copy in layout.dtype, while held, unless master_is_full
  /// Full fp32 gradient, from its first use in a micro-step until its reduction has run.
  Buffer slot;
};

/// One unit of gathering and reduction, with its states.
struct ParamGroup {
  GroupSpec spec;
  GroupLayout layout;
  std::vector<SubGroup> sub_groups;
  /// Index of each parameter's first element in the model without padding.
  std::vector<Elements> global_offsets;

  enum class State { kSharded, kOnItsWay, kHeld, kKept };
  State state = State::kSharded;
  int holders = 0;  ///< of the thread that gathers
  int guests = 0;   ///< of other threads
  /// The end of the gather, until compute has been made to wait for it.
  std::optional<Event> ready;
  /// Ends the views of a hold whose memory stays (master_is_full, kept groups).
  BlockRef lease;

  int uses = 0;               ///< of gradients, in this micro-step: begun
  int uses_over = 0;          ///< and ended
  bool grads_open = false;    ///< slots are there and zeroed or added to
  bool reduced = false;       ///< in this micro-step
  BlockRef grads_lease;       ///< ends the views of gradients when their reduction begins
  bool used_in_step = false;  ///< on this rank
  std::int64_t updates = 0;   ///< optimizer steps that changed this group

  /// Bytes of full copies that a gather allocates.
  [[nodiscard]] Bytes gathered_bytes(int world_size) const;
  /// Bytes of full gradient slots.
  [[nodiscard]] Bytes slot_bytes(int world_size) const;
  [[nodiscard]] Elements size() const;
  /// Whether any parameter has gradients.
  [[nodiscard]] bool trainable() const;
  /// Throws UsageError unless the spec has a parameter of this index.
  void check_index(int param) const;
};

[[nodiscard]] ParamGroup make_param_group(GroupSpec spec, const EngineOptions& options,
                                          int world_size);

}  // namespace zero3
