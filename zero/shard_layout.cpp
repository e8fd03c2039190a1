#include <zero3/shard_layout.h>

#include <algorithm>

namespace zero3 {

Elements ParamSpec::size() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return Elements(count);
}

ParamPart SubGroupLayout::part(std::size_t index, Elements param_size, int rank) const {
  const Elements offset = offsets[index];
  const Elements own = shard * rank;
  const ElementRange range = intersect({own, own + shard}, {offset, offset + param_size});
  if (range.size() == Elements(0)) return {};
  return {range.begin - own, range.begin - offset, range.size()};
}

GroupLayout make_layout(const GroupSpec& group, DType default_dtype, int world_size) {
  GroupLayout layout;
  for (int index = 0; const ParamSpec& param : group.params) {
    const DType dtype = param.dtype.value_or(default_dtype);
    auto sub = std::find_if(layout.sub_groups.begin(), layout.sub_groups.end(),
                            [&](const SubGroupLayout& s) {
                              return s.dtype == dtype && s.trainable == param.trainable;
                            });
    if (sub == layout.sub_groups.end()) {
      sub = layout.sub_groups.emplace(layout.sub_groups.end());
      sub->dtype = dtype;
      sub->trainable = param.trainable;
    }
    const Elements offset(round_up(sub->size.count(), kParamAlignment));
    sub->params.push_back(index++);
    sub->offsets.push_back(offset);
    sub->size = offset + param.size();
    layout.places.push_back({static_cast<int>(sub - layout.sub_groups.begin()), offset});
  }
  for (SubGroupLayout& sub : layout.sub_groups) sub.shard = shard_size(sub.size, world_size);
  return layout;
}

}  // namespace zero3
