#include "param_group.h"

#include <algorithm>
#include <utility>

#include <zero3/error.h>

namespace zero3 {

Bytes ParamGroup::gathered_bytes(int world_size) const {
  Bytes sum;
  for (const SubGroup& sub : sub_groups) {
    if (!sub.master_is_full)
      sum += aligned(bytes_of(sub.layout.padded(world_size), sub.layout.dtype));
  }
  return sum;
}

Bytes ParamGroup::slot_bytes(int world_size) const {
  Bytes sum;
  for (const SubGroup& sub : sub_groups) {
    if (sub.layout.trainable) sum += aligned(bytes_of(sub.layout.padded(world_size), DType::kF32));
  }
  return sum;
}

Elements ParamGroup::size() const {
  Elements sum;
  for (const ParamSpec& param : spec.params) sum += param.size();
  return sum;
}

bool ParamGroup::trainable() const {
  return std::any_of(sub_groups.begin(), sub_groups.end(),
                     [](const SubGroup& sub) { return sub.layout.trainable; });
}

void ParamGroup::check_index(int param) const {
  ZERO3_CHECK(param >= 0 && static_cast<std::size_t>(param) < spec.params.size(), "group '",
              spec.name, "' has ", spec.params.size(), " parameters; there is no index ", param);
}

ParamGroup make_param_group(GroupSpec spec, const EngineOptions& options, int world_size) {
  ParamGroup group;
  group.layout = make_layout(spec, options.precision.param, world_size);
  group.spec = std::move(spec);
  for (const SubGroupLayout& layout : group.layout.sub_groups) {
    SubGroup& sub = group.sub_groups.emplace_back();
    sub.layout = layout;
    sub.master_is_full = world_size == 1 && layout.dtype == DType::kF32;
  }
  return group;
}

}  // namespace zero3
