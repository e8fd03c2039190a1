#include <algorithm>
#include <utility>

#include <zero3/copy.h>
#include <zero3/error.h>
#include <zero3/reduce.h>
#include "engine_state.h"

namespace zero3 {
namespace {

struct Found {
  SubGroup& sub;
  std::size_t index;      ///< in the layout of the sub-group
  Elements offset, size;  ///< within the flat buffer
};

Found find_parameter(std::deque<ParamGroup>& groups, std::string_view name) {
  for (ParamGroup& group : groups) {
    for (SubGroup& sub : group.sub_groups) {
      for (std::size_t i = 0; i < sub.layout.params.size(); ++i) {
        const ParamSpec& param = group.spec.params[static_cast<std::size_t>(sub.layout.params[i])];
        if (param.name == name) return {sub, i, sub.layout.offsets[i], param.size()};
      }
    }
  }
  throw UsageError(concat("there is no parameter '", name, "'"));
}

}  // namespace

std::vector<float> Engine::read_parameter(std::string_view name) {
  State& s = *state_;
  s.check_usable("read_parameter");
  const Found found = find_parameter(s.groups, name);
  const Buffer full(found.sub.layout.padded(world_size()), DType::kF32, MemoryTag::kWorkspace,
                    *s.gather);
  s.gather->wait(s.compute->record());
  s.communicator.all_gather(full.view(), found.sub.master.view(), name, *s.gather);
  std::vector<float> values(static_cast<std::size_t>(found.size.count()));
  copy_to_host(values.data(), full.view().slice(found.offset, found.size), *s.gather);
  s.gather->synchronize();
  return values;
}

void Engine::write_parameter(std::string_view name, std::span<const float> values) {
  State& s = *state_;
  s.check_usable("write_parameter");
  const Found found = find_parameter(s.groups, name);
  ZERO3_CHECK(static_cast<std::int64_t>(values.size()) == found.size.count(), "parameter '", name,
              "' has ", found.size, " elements, not ", values.size());
  ZERO3_CHECK(s.micro_steps_begun == 0, "parameter '", name, "' is written within a step");
  s.gatherer->check_none_held("write_parameter");
  s.compute->wait(s.gather->record());
  const ParamPart part = found.sub.layout.part(found.index, found.size, rank());
  copy_from_host(found.sub.master.view().slice(part.in_shard, part.size),
                 values.data() + part.in_param.count(), *s.compute);
  s.gatherer->weights_changed();
  s.compute->synchronize();
}

std::uint64_t Engine::weights_checksum() {
  State& s = *state_;
  s.check_usable("weights_checksum");
  std::uint64_t sum = 0;
  for (const ParamGroup& group : s.groups) {
    for (const SubGroup& sub : group.sub_groups) {
      for (std::size_t i = 0; i < sub.layout.params.size(); ++i) {
        const auto param = static_cast<std::size_t>(sub.layout.params[i]);
        const ParamPart part = sub.layout.part(i, group.spec.params[param].size(), rank());
        if (part.size == Elements(0)) continue;
        sum += s.norm->checksum(sub.master.view().slice(part.in_shard, part.size),
                                (group.global_offsets[param] + part.in_param).count());
      }
    }
  }
  return s.norm->add_over_ranks(sum, "weights checksum");
}

std::vector<double> Engine::gather_values(std::span<const double> values, std::string_view label) {
  state_->check_usable("gather_values");
  return state_->norm->gather_values(values, label);
}

}  // namespace zero3
