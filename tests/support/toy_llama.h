#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <zero3/engine.h>
#include <zero3/local_world.h>
#include <zero3/trainer/llama_model.h>

#include "support/reference_llama.h"

namespace zero3::test {

/// Word `index` of a fixed sequence that belongs to `name`: FNV-1a and the finaliser of
/// MurmurHash3.
[[nodiscard]] inline std::uint32_t formula_word(std::string_view name, std::int64_t index) {
  std::uint32_t seed = 2166136261U;
  for (const char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 16777619U;
  std::uint32_t x = seed + static_cast<std::uint32_t>(index) * 2654435761U;
  x ^= x >> 16;
  x *= 0x85EBCA6BU;
  x ^= x >> 13;
  x *= 0xC2B2AE35U;
  return x ^ (x >> 16);
}

/// A weight that is large enough for every part of a model to matter; exact in fp32.
[[nodiscard]] inline double formula_value(std::string_view name, std::int64_t index) {
  const double uniform = static_cast<double>(formula_word(name, index) >> 16) / 65536.0 - 0.5;
  if (name.ends_with("norm.weight")) return 1 + 0.5 * uniform;
  return (name.find("embed_tokens") == std::string_view::npos ? 0.5 : 2.0) * uniform;
}

/// Sizes that are no multiples of each other, of vectors or of granules.
[[nodiscard]] inline trainer::LlamaConfig toy_config() {
  trainer::LlamaConfig config;
  config.hidden = 24;
  config.intermediate = 18;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 6;
  config.vocab = 13;
  config.rope.head_dim = 6;
  config.rope.theta = 100.0;
  return config;
}

struct ToyTokens {
  TokenShape shape;
  std::vector<std::int32_t> inputs, targets;
};
/// Every seventh target counts for nothing. `first` chooses other tokens.
[[nodiscard]] inline ToyTokens toy_tokens(TokenShape shape, std::int64_t vocab,
                                          std::int64_t first = 0) {
  ToyTokens tokens = {.shape = shape, .inputs = {}, .targets = {}};
  const auto draw = [&](std::string_view name, std::int64_t i) {
    return static_cast<std::int32_t>(formula_word(name, first + i) %
                                     static_cast<std::uint32_t>(vocab));
  };
  for (std::int64_t i = 0; i < shape.rows(); ++i) {
    tokens.inputs.push_back(draw("inputs", i));
    tokens.targets.push_back(i % 7 == 3 ? trainer::kIgnoreToken : draw("targets", i));
  }
  return tokens;
}

struct ToyOptions {
  trainer::LlamaOptions model = {.tokens = {.batch = 2, .seq = 9}, .granule_rows = 4};
  DeviceKind kind = DeviceKind::kCpu;
  int threads = 1;
  int micro_steps = 1;
  float loss_scale = 1;
};

/// Calls `write(name, values)` for every parameter, with the formula's values.
template <class Write>
void for_each_formula_param(std::span<const GroupSpec> groups, const Write& write) {
  for (const GroupSpec& group : groups) {
    for (const ParamSpec& param : group.params) {
      std::vector<float> values;
      for (std::int64_t i = 0; i < param.size().count(); ++i) {
        values.push_back(static_cast<float>(formula_value(param.name, i)));
      }
      write(param.name, values);
    }
  }
}

/// A model with the formula's weights in an engine of its own, with plain SGD.
class ToyLlama {
 public:
  explicit ToyLlama(const trainer::LlamaConfig& config, const ToyOptions& options = {})
      : ToyLlama(config, options,
                 make_device({.kind = options.kind,
                              .threads = options.threads,
                              .capacity = Bytes(1 << 28),
                              .poison = true}),
                 make_self_communicator()) {}
  ToyLlama(const trainer::LlamaConfig& config, const ToyOptions& options,
           std::unique_ptr<Device> own_device, std::unique_ptr<Communicator> own_communicator)
      : device(std::move(own_device)),
        communicator(std::move(own_communicator)),
        engine(*device, *communicator,
               {.precision = {.param = options.model.dtype},
                .optimizer = OptimizerKind::kSgd,
                .optimizer_groups = {OptimizerGroup{}, OptimizerGroup{}},
                .loss_scale = options.loss_scale,
                .micro_steps = options.micro_steps}),
        model(engine, config, options.model) {
    engine.build();
    model.build();
    write_weights();
  }

  void write_weights() {
    for_each_formula_param(engine.groups(), [&](const std::string& name, const auto& values) {
      engine.write_parameter(name, values);
    });
  }
  /// Forward and backward of one micro-batch.
  void train(const ToyTokens& tokens) {
    MicroStep micro_step = engine.begin_micro_step();
    model.train(micro_step, tokens.inputs, tokens.targets, tokens.shape);
    micro_step.end();
  }
  /// The gradients of what was trained on, undivided; weights are the formula's again.
  [[nodiscard]] std::map<std::string, std::vector<float>> gradients() {
    // With a rate this large the old weight is nothing beside the update, so that the difference
    // has its precision.
    constexpr float kRate = 0x1p20F;
    std::map<std::string, std::vector<float>> result;
    result_of_step = engine.step({.learning_rate = kRate, .divisor = 1.0});
    for_each_formula_param(engine.groups(), [&](const std::string& name, const auto& before) {
      std::vector<float> values = engine.read_parameter(name);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>((double{before[i]} - double{values[i]}) / double{kRate});
      }
      result[name] = std::move(values);
    });
    write_weights();
    return result;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> communicator;
  Engine engine;
  trainer::LlamaModel model;
  StepResult result_of_step;
};

/// The same weights for the reference.
inline void write_reference(ReferenceLlama& reference, std::span<const GroupSpec> groups) {
  for_each_formula_param(groups, [&](const std::string& name, const auto& values) {
    reference.params[name].assign(values.begin(), values.end());
  });
}

}  // namespace zero3::test
