#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <zero3/copy.h>
#include <zero3/engine.h>
#include <zero3/rope.h>
#include <zero3/trainer/llama_block.h>

#include "support/backends.h"
#include "support/toy_llama.h"

namespace zero3::trainer {

inline constexpr TokenShape kTokens = {.batch = 2, .seq = 7};

inline std::vector<float> token_values(const char* name, std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(test::formula_value(name, i)));
  return values;
}

/// What a block's backward gave.
struct Backward {
  std::vector<float> gradient;
  std::map<std::string, std::vector<float>> params;
};

/// Block 0 of a model with the formula's weights, alone in an engine.
class BlockRun {
 public:
  explicit BlockRun(const LlamaConfig& config, std::int64_t granule_rows = 4,
                    TokenShape tokens = kTokens)
      : BlockRun(config, LlamaBlockOptions{.granule_rows = granule_rows}, tokens) {}
  BlockRun(const LlamaConfig& config, const LlamaBlockOptions& options, TokenShape tokens)
      : bench_(DeviceKind::kCpu, 1),
        tokens_(tokens),
        communicator_(make_self_communicator()),
        engine_(*bench_.device, *communicator_,
                {.optimizer_groups = {OptimizerGroup{}, OptimizerGroup{}}}),
        block_(config, 0, options, rope_),
        group_(engine_.add_group(block_.group())),
        size_(tokens.rows() * config.hidden) {
    engine_.build();
    test::for_each_formula_param(engine_.groups(),
                                 [&](const std::string& name, const auto& values) {
                                   engine_.write_parameter(name, values);
                                 });
    const RopeTable table = make_rope_table(config.rope, std::max<std::int64_t>(tokens.seq, 1));
    cos_ = bench_.upload(table.cos);
    sin_ = bench_.upload(table.sin);
    rope_ = {.cos = cos_.view(), .sin = sin_.view()};
    const LayerMemory memory = block_.memory(tokens);
    saved_ = bench_.allocate(memory.saved.count(), DType::kU8);
    workspace_ = bench_.allocate(memory.workspace.count(), DType::kU8);
    in_ = bench_.upload(token_values("x", size_));
    out_ = bench_.allocate(size_);
    gemm_.emplace(engine_.compute(), options.granule_rows);
    engine_.compute().wait(bench_.stream->record());
  }

  std::vector<float> forward(Pass pass = Pass::kTraining) {
    const Gathered weights = engine_.gather(group_);
    block_.forward(context(), weights, in_.view(),
                   pass == Pass::kRecompute ? TensorView() : out_.view(), saved_.view(), pass);
    return pass == Pass::kRecompute ? std::vector<float>() : download(out_.view());
  }

  /// After forward(kTraining or kRecompute): the gradients for one of the output. With more `times`
  /// forward and backward run again into the same parameter gradients.
  Backward backward(const std::vector<float>& output_gradient, int times = 1) {
    MicroStep micro_step = engine_.begin_micro_step();
    Backward result;
    {
      const Gathered weights = engine_.gather(group_);
      const Gradients grads = engine_.grads(group_);
      for (int time = 0; time < times; ++time) {
        if (time > 0) forward();
        Buffer gradient = bench_.upload(output_gradient);
        block_.backward(context(), weights, grads, in_.view(), saved_.view(), gradient.view());
        result.gradient = download(gradient.view());
      }
      const GroupSpec spec = block_.group();
      for (std::size_t i = 0; i < spec.params.size(); ++i) {
        result.params[spec.params[i].name] = download(grads[static_cast<int>(i)]);
      }
    }
    micro_step.end();
    return result;
  }

  [[nodiscard]] LayerContext context() {
    return {tokens_, engine_.compute(), *gemm_, workspace_.view(), place, true};
  }
  void set_input(const std::vector<float>& values) {
    copy_from_host(in_.view(), values.data(), engine_.compute());
    engine_.compute().synchronize();
  }
  BatchPlace place;
  LlamaBlock& block() { return block_; }
  Engine& engine() { return engine_; }

 private:
  std::vector<float> download(const TensorView& view) {
    std::vector<float> values(static_cast<std::size_t>(view.count()));
    copy_to_host(values.data(), view, engine_.compute());
    engine_.compute().synchronize();
    return values;
  }

  test::Bench bench_;
  TokenShape tokens_;
  std::unique_ptr<Communicator> communicator_;
  Engine engine_;
  RopeViews rope_;
  LlamaBlock block_;
  GroupId group_;
  std::int64_t size_;
  Buffer cos_, sin_, saved_, workspace_, in_, out_;
  std::optional<Gemm> gemm_;
};

struct Feature {
  const char* name;
  void (*apply)(LlamaConfig&);
};
inline void set_head_dim(LlamaConfig& config, std::int64_t head_dim) {
  config.head_dim = config.rope.head_dim = head_dim;
}
inline const Feature kFeatures[] = {
    {"Grouped", [](LlamaConfig&) {}},
    {"MultiHead", [](LlamaConfig& c) { c.kv_heads = c.heads; }},
    {"MultiQuery", [](LlamaConfig& c) { c.kv_heads = 1; }},
    {"QkvBias", [](LlamaConfig& c) { c.qkv_bias = true; }},
    {"AllBiases", [](LlamaConfig& c) { c.qkv_bias = c.output_bias = true; }},
    {"QkNorm", [](LlamaConfig& c) { c.qk_norm = true; }},
    {"WideHeads",
     [](LlamaConfig& c) {
       set_head_dim(c, 10);
       c.qk_norm = c.qkv_bias = true;
     }},
    {"NarrowHeads", [](LlamaConfig& c) { set_head_dim(c, 2); }},
};
inline void PrintTo(const Feature& feature, std::ostream* out) {
  *out << feature.name;
}

/// A toy block with each feature of the family in turn.
class BlockFeature : public ::testing::TestWithParam<Feature> {
 protected:
  BlockFeature() { GetParam().apply(config); }
  LlamaConfig config = test::toy_config();
};

}  // namespace zero3::trainer
