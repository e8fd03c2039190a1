#include <zero3/trainer/run_plan.h>

#include <algorithm>
#include <memory>
#include <utility>

#include <zero3/error.h>
#include <zero3/shard_layout.h>

namespace zero3::trainer {
namespace {

/// Beyond this no plan is asked for.
constexpr std::int64_t kLongestSequence = std::int64_t{1} << 24;

/// Rank 0 of a group that does not exist: knows its size, and cannot communicate.
class PlannedRanks final : public Communicator {
 public:
  explicit PlannedRanks(int size) : size_(size) {}

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int world_size() const override { return size_; }
  void all_gather(TensorView, TensorView, std::string_view label, Stream&) override {
    refuse(label);
  }
  void reduce_scatter(TensorView, TensorView, Reduction, std::string_view label, Stream&) override {
    refuse(label);
  }
  void all_reduce(TensorView, std::string_view label, Stream&) override { refuse(label); }
  void all_to_all(TensorView, TensorView, std::string_view label, Stream&) override {
    refuse(label);
  }
  void broadcast(TensorView, int, std::string_view label, Stream&) override { refuse(label); }
  void barrier(std::string_view label, Stream&) override { refuse(label); }
  [[nodiscard]] std::unique_ptr<Communicator> split(int, int, Stream&) override { refuse("split"); }
  void abort(std::string_view) noexcept override {}
  [[nodiscard]] CommCounters counters() const override { return {}; }

 private:
  [[noreturn]] static void refuse(std::string_view what) {
    throw UsageError(concat("ranks that are only planned cannot communicate ('", what, "')"));
  }

  int size_;
};

/// Device and ranks for plans; nothing is allocated on the one, nothing is sent to the others.
struct Planner {
  explicit Planner(const RunPlace& place)
      : device(make_device({.kind = place.device, .threads = place.threads})), ranks(place.ranks) {}

  [[nodiscard]] RankTrainer trainer(const LlamaConfig& config, const TrainOptions& options) {
    return {*device, ranks, config, options};
  }

  std::unique_ptr<Device> device;
  PlannedRanks ranks;
};

/// The model gathers every group once in the forward and once in the backward, but for an embedding
/// of its own, whose backward needs no weights, and a head of its own, which does both at once.
int gathers_per_micro_step(const LlamaConfig& config, std::size_t group, std::size_t groups) {
  const bool at_an_end = group == 0 || group + 1 == groups;
  return !config.tied && at_an_end ? 1 : 2;
}

void add_traffic(RunPlan& plan, const LlamaConfig& config, const TrainOptions& options,
                 const RankTrainer& trainer, int ranks) {
  const std::span<const GroupSpec> groups = trainer.engine().groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Elements size;
    for (const ParamSpec& param : groups[i].params) size += param.size();
    const bool stays = size < options.keep_gathered_below;
    const int gathers =
        stays ? 1 : gathers_per_micro_step(config, i, groups.size()) * options.accumulate;
    for (const SubGroupLayout& part : make_layout(groups[i], options.dtype, ranks).sub_groups) {
      const Elements from_others = part.shard * (ranks - 1);
      plan.gathered_per_step += bytes_of(from_others, part.dtype) * gathers;
      if (part.trainable)
        plan.reduced_per_step += bytes_of(from_others, DType::kF32) * options.accumulate;
    }
  }
}

/// The tag of which `plan` has most beyond what `base` has.
MemoryTag largest_tag(const MemoryPlan& plan, const MemoryPlan& base) {
  std::size_t largest = 0;
  for (std::size_t tag = 1; tag < kMemoryTagCount; ++tag) {
    if (plan.bytes[tag] - base.bytes[tag] > plan.bytes[largest] - base.bytes[largest])
      largest = tag;
  }
  return static_cast<MemoryTag>(largest);
}

}  // namespace

RunPlan plan_run(const LlamaConfig& config, const TrainOptions& options, const RunPlace& place) {
  Planner planner(place);
  const RankTrainer trainer = planner.trainer(config, options);
  RunPlan plan;
  plan.memory = trainer.plan();
  plan.phases = trainer.phases();
  plan.tiles = trainer.tiles();
  plan.host_checkpoints = trainer.layer_inputs().host_bytes();
  plan.disk_checkpoints = trainer.layer_inputs().disk_bytes();
  plan.parameters = trainer.engine().parameter_count().count();
  add_traffic(plan, config, options, trainer, place.ranks);
  const auto tokens =
      static_cast<double>(options.micro_batch.rows() * options.accumulate * place.ranks);
  plan.model_flops = flops_per_token(config, options.micro_batch.seq) * tokens;
  const double head = 6.0 * static_cast<double>(config.vocab * config.hidden) * tokens;
  plan.executed_flops =
      plan.model_flops + (options.checkpoints.recompute() ? (plan.model_flops - head) / 3 : 0);
  return plan;
}

LongestSequence longest_sequence(const LlamaConfig& config, const TrainOptions& options,
                                 const RunPlace& place, Bytes device_memory) {
  Planner planner(place);
  const auto plan_at = [&](std::int64_t seq) {
    TrainOptions changed = options;
    changed.micro_batch.seq = seq;
    const RankTrainer trainer = planner.trainer(config, changed);
    return LongestSequence{.seq = seq,
                           .memory = trainer.plan(),
                           .host_checkpoints = trainer.layer_inputs().host_bytes(),
                           .disk_checkpoints = trainer.layer_inputs().disk_bytes()};
  };
  const auto host_fits = [&](const LongestSequence& plan) {
    return plan.host_checkpoints <= options.checkpoints.host_limit;
  };
  const auto fits_at = [&](std::int64_t seq) {
    const LongestSequence plan = plan_at(seq);
    return plan.memory.total() <= device_memory && host_fits(plan);
  };
  std::int64_t fits = 0;
  std::int64_t beyond = 1;
  while (beyond <= kLongestSequence && fits_at(beyond)) fits = std::exchange(beyond, beyond * 2);
  while (beyond - fits > 1) {
    const std::int64_t middle = fits + (beyond - fits) / 2;
    (fits_at(middle) ? fits : beyond) = middle;
  }
  LongestSequence longest = plan_at(std::max<std::int64_t>(fits, 1));
  longest.seq = fits;
  longest.bound_by_host = !host_fits(plan_at(fits + 1));
  longest.binding = fits == 0
                        ? largest_tag(longest.memory, {})
                        : largest_tag(plan_at(fits + kDefaultGranuleRows).memory, longest.memory);
  return longest;
}

}  // namespace zero3::trainer
