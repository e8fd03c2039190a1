#include "commands.h"

#include <memory>
#include <optional>

#include <fmt/format.h>

#include <zero3/trainer/run_plan.h>
#include "flags.h"
#include "json_records.h"
#include "line_writer.h"
#include "train_flags.h"

namespace zero3::program {
namespace {

struct EstimateFlags {
  TrainFlags train;
  std::optional<Bytes> device_memory;
  bool json = false;
};

struct Estimate {
  EstimateFlags flags;
  trainer::TrainOptions options;
  Place place;
  trainer::RunPlan plan;
  std::optional<trainer::LongestSequence> longest;
};

/// Of layer inputs, where there are any outside of the device.
void add_outside(Json& json, const std::string& prefix, Bytes host, Bytes disk) {
  if (host.count() > 0) json[prefix + "_bytes"]["host_checkpoints"] = host.count();
  if (disk.count() > 0) json[prefix + "_disk_bytes"] = disk.count();
}

std::string bound_of(const trainer::LongestSequence& longest) {
  return longest.bound_by_host ? "host_checkpoints" : std::string(name_of(longest.binding));
}

std::string json_text(const Estimate& estimate) {
  const trainer::TrainOptions& options = estimate.options;
  Json json = {{"model", estimate.flags.train.base.model},
               {"parameters", estimate.plan.parameters},
               {"ranks", estimate.place.run.ranks},
               {"batch", options.micro_batch.batch},
               {"seq", options.micro_batch.seq},
               {"accumulate", options.accumulate},
               {"dtype", name_of(options.dtype)},
               {"planned_bytes", to_json(estimate.plan.memory)},
               {"planned_total_bytes", estimate.plan.memory.total().count()},
               {"workspace_by_phase",
                {{"attention", estimate.plan.phases.attention.count()},
                 {"mlp", estimate.plan.phases.mlp.count()},
                 {"head", estimate.plan.phases.head.count()}}},
               {"received_bytes_per_step",
                {{"all_gather", estimate.plan.gathered_per_step.count()},
                 {"reduce_scatter", estimate.plan.reduced_per_step.count()}}},
               {"model_flops_per_step", estimate.plan.model_flops},
               {"executed_flops_per_step", estimate.plan.executed_flops}};
  add_outside(json, "planned", estimate.plan.host_checkpoints, estimate.plan.disk_checkpoints);
  if (estimate.longest) {
    const trainer::LongestSequence& longest = *estimate.longest;
    json["device_memory"] = estimate.flags.device_memory->count();
    json["longest_seq"] = longest.seq;
    json["longest_seq_bound_by"] = bound_of(longest);
    json["longest_seq_planned_bytes"] = to_json(longest.memory);
    add_outside(json, "longest_seq_planned", longest.host_checkpoints, longest.disk_checkpoints);
  }
  return json.dump();
}

/// Lines of layer inputs outside of the device; none where there are none.
std::string outside_text(Bytes host, Bytes disk) {
  std::string text;
  for (const auto& [place, bytes] : {std::pair{"on the host", host}, std::pair{"on disk", disk}}) {
    if (bytes.count() > 0)
      text += fmt::format("  {:<12} {:>12}   layer inputs\n", place, concat(bytes));
  }
  return text;
}

std::string table_text(const Estimate& estimate) {
  const trainer::TrainOptions& options = estimate.options;
  std::string text = fmt::format(
      "{}: {} parameters, {}; {}, {} of {} x {} tokens\n"
      "\n"
      "memory of each rank\n"
      "{}"
      "{}"
      "\n"
      "workspace by phase, of which the largest is taken\n"
      "  attention      {:>12}\n"
      "  mlp            {:>12}\n"
      "  logits, loss   {:>12}\n"
      "\n"
      "received by each rank in a step\n"
      "  all-gather     {:>12}   parameters\n"
      "  reduce-scatter {:>12}   gradients\n"
      "\n"
      "floating-point work of a step on all ranks\n"
      "  of the model   {:>12.4g}\n"
      "  executed       {:>12.4g}",
      estimate.flags.train.base.model, estimate.plan.parameters, name_of(options.dtype),
      counted(estimate.place.run.ranks, "rank"), counted(options.accumulate, "micro-step"),
      options.micro_batch.batch, options.micro_batch.seq, to_table(estimate.plan.memory),
      outside_text(estimate.plan.host_checkpoints, estimate.plan.disk_checkpoints),
      concat(estimate.plan.phases.attention), concat(estimate.plan.phases.mlp),
      concat(estimate.plan.phases.head), concat(estimate.plan.gathered_per_step),
      concat(estimate.plan.reduced_per_step), estimate.plan.model_flops,
      estimate.plan.executed_flops);
  if (!estimate.longest) return text;
  const Bytes memory = *estimate.flags.device_memory;
  if (estimate.longest->seq == 0) {
    return text +
           fmt::format("\n\nsequences of one token need {}, more than {}; {} take most of it",
                       concat(estimate.longest->memory.total()), concat(memory),
                       name_of(estimate.longest->binding));
  }
  return text + fmt::format("\n\nlongest sequence that fits into {}: {} tokens; {}\n{}{}",
                            concat(memory), estimate.longest->seq,
                            estimate.longest->bound_by_host
                                ? "--host-limit binds"
                                : concat(name_of(estimate.longest->binding), " grow most with it"),
                            to_table(estimate.longest->memory),
                            outside_text(estimate.longest->host_checkpoints,
                                         estimate.longest->disk_checkpoints));
}

Estimate make_estimate(const EstimateFlags& flags) {
  Estimate estimate{.flags = flags,
                    .options = train_options(flags.train),
                    .place = planned_place(flags.train.place),
                    .plan = {},
                    .longest = std::nullopt};
  const trainer::LlamaConfig config = trainer::resolve_config(flags.train.base.model);
  estimate.plan = trainer::plan_run(config, estimate.options, estimate.place.run);
  check_plan(estimate.plan.memory, flags.train.memory_limit);
  if (flags.device_memory) {
    estimate.longest = trainer::longest_sequence(config, estimate.options, estimate.place.run,
                                                 *flags.device_memory);
  }
  return estimate;
}

}  // namespace

Command add_estimate_command(CLI::App& program) {
  CLI::App* app = add_command(
      program, "estimate", "Memory, traffic and work of a training, without allocating anything");
  auto flags = std::make_shared<EstimateFlags>();
  add_train_flags(*app, flags->train);
  begin_group(*app, "Estimate");
  add_value(*app, {"--device-memory", "SIZE", "find the longest sequence that fits into this"}, "",
            [flags](const std::string& text) { flags->device_memory = Bytes(parse_size(text)); });
  add_switch(*app, {"--json", "", "print one JSON object"}, flags->json);
  return {app, [flags]() -> std::function<void()> {
            return [estimate = make_estimate(*flags)] {
              const std::string text =
                  estimate.flags.json ? json_text(estimate) : table_text(estimate);
              LineWriter("output", "-").write_line(text);
            };
          }};
}

}  // namespace zero3::program
