#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <zero3/half.h>
#include "support/toy_model.h"

namespace zero3::test::toy {

/// The toy model trained by one process on unsharded buffers: accumulation, norm, clip and
/// optimizer as plain loops, with zero3's rule of the bits.
class Oracle {
 public:
  Oracle(const Shape& shape, const EngineOptions& options) : shape_(shape), options_(options) {
    groups_.push_back(table_group(shape, "embedding", shape.tied ? 2 : 1));
    for (std::size_t i = 0; i < shape.layers; ++i) groups_.push_back(layer_group(shape, i));
    if (!shape.tied) groups_.push_back(table_group(shape, "head", 1));
  }

  /// First weights are the engine's.
  void take_weights(Engine& engine) {
    for (const GroupSpec& group : groups_) {
      for (const ParamSpec& param : group.params) {
        Parameter& p = parameters_[param.name];
        p.master = engine.read_parameter(param.name);
        for (std::vector<float>* array : {&p.accumulator, &p.gradient, &p.m, &p.v})
          array->assign(p.master.size(), 0.0F);
      }
    }
  }

  /// One step over micro-batches 0 … count - 1.
  void step(int index, int count, double learning_rate, Trajectory& trajectory) {
    double loss = 0;
    for (int j = 0; j < count; ++j) {
      for (auto& [name, p] : parameters_) std::fill(p.gradient.begin(), p.gradient.end(), 0.0F);
      loss += micro_batch(index, j);
      for (auto& [name, p] : parameters_) {
        for (std::size_t i = 0; i < p.gradient.size(); ++i) {
          const float g = round_to(options_.precision.reduce, p.gradient[i]);
          p.accumulator[i] = j == 0 ? g : p.accumulator[i] + g;
        }
      }
    }
    const double tokens = static_cast<double>(count) * static_cast<double>(shape_.rows);
    const double unscale = 1.0 / (tokens * static_cast<double>(options_.loss_scale));
    const double norm = std::sqrt(squares()) * unscale;
    const double clip = options_.clip > 0 ? std::min(1.0, options_.clip / (norm + 1e-6)) : 1.0;
    ++steps_;
    for (const GroupSpec& group : groups_) {
      for (const ParamSpec& param : group.params) {
        if (param.trainable) update(param, learning_rate, static_cast<float>(unscale * clip));
      }
    }
    trajectory.losses.push_back(loss / tokens);
    trajectory.norms.push_back(norm);
  }

  [[nodiscard]] const std::vector<float>& weights(const std::string& name) const {
    return parameters_.at(name).master;
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, p] : parameters_) names.push_back(name);
    return names;
  }

 private:
  struct Parameter {
    std::vector<float> master, accumulator, gradient, m, v;
  };

  static float round_to(DType dtype, float value) {
    if (dtype == DType::kBF16) return static_cast<float>(BFloat16(value));
    if (dtype == DType::kF16) return static_cast<float>(Float16(value));
    return value;
  }

  [[nodiscard]] std::vector<float> full(const std::string& name, DType dtype) const {
    std::vector<float> values = parameters_.at(name).master;
    for (float& value : values) value = round_to(dtype, value);
    return values;
  }

  /// Adds to the gradients; returns the loss.
  double micro_batch(int step, int j) {
    const Batch batch(shape_, step, j);
    const DType dtype = options_.precision.param;
    const std::string head_name = shape_.tied ? "embedding.table" : "head.table";
    const std::vector<float> table = full("embedding.table", dtype);
    const std::size_t size = shape_.rows * shape_.width;
    std::vector<std::vector<float>> hidden(shape_.layers + 1, std::vector<float>(size));
    std::vector<std::vector<float>> saved(shape_.layers, std::vector<float>(saved_size(shape_)));
    embed(shape_, table, batch.tokens, hidden[0]);
    for (std::size_t l = 0; l < shape_.layers; ++l) {
      const LayerValues values(*this, l);
      layer_forward(shape_, values.weights(), hidden[l], hidden[l + 1], saved[l]);
    }
    std::vector<float> d(size);
    const double loss = head(shape_, full(head_name, dtype), hidden.back(), batch.targets,
                             options_.loss_scale, d, parameters_.at(head_name).gradient);
    for (std::size_t l = shape_.layers; l-- > 0;) {
      const LayerValues values(*this, l);
      const auto gradient = [&](const char* name) -> Out {
        return parameters_.at("layer." + std::to_string(l) + name).gradient;
      };
      layer_backward(shape_, values.weights(),
                     {gradient(".w1"), gradient(".bias"), gradient(".w2"), gradient(".scale")},
                     hidden[l], saved[l], d);
    }
    embed_backward(shape_, parameters_.at("embedding.table").gradient, batch.tokens, d);
    return loss;
  }

  struct LayerValues {
    LayerValues(const Oracle& oracle, std::size_t l) {
      const std::string name = "layer." + std::to_string(l);
      const DType dtype = oracle.options_.precision.param;
      w1 = oracle.full(name + ".w1", dtype);
      bias = oracle.full(name + ".bias", dtype);
      w2 = oracle.full(name + ".w2", dtype);
      scale = oracle.full(name + ".scale", DType::kF32);
      shift = oracle.full(name + ".shift", dtype);
    }
    [[nodiscard]] LayerWeights weights() const { return {w1, bias, w2, scale, shift}; }
    std::vector<float> w1, bias, w2, scale, shift;
  };

  /// Of all accumulators, by blocks of 1024 elements of each sub-group's flat buffer.
  [[nodiscard]] double squares() const {
    double sum = 0;
    for (const GroupSpec& group : groups_) {
      const GroupLayout layout = make_layout(group, options_.precision.param, 1);
      for (const SubGroupLayout& sub : layout.sub_groups) {
        if (!sub.trainable) continue;
        std::vector<float> flat(static_cast<std::size_t>(sub.shard.count()), 0.0F);
        for (std::size_t i = 0; i < sub.params.size(); ++i) {
          const auto& name = group.params[static_cast<std::size_t>(sub.params[i])].name;
          const std::vector<float>& source = parameters_.at(name).accumulator;
          std::copy(source.begin(), source.end(), flat.begin() + sub.offsets[i].count());
        }
        for (std::size_t block = 0; block < flat.size(); block += 1024) {
          double block_sum = 0;
          for (std::size_t i = block; i < block + 1024; ++i)
            block_sum += static_cast<double>(flat[i]) * static_cast<double>(flat[i]);
          sum += block_sum;
        }
      }
    }
    return sum;
  }

  void update(const ParamSpec& param, double learning_rate, float factor) {
    Parameter& p = parameters_.at(param.name);
    const OptimizerGroup& hyper =
        options_.optimizer_groups[static_cast<std::size_t>(param.optimizer_group)];
    const double rate = learning_rate * hyper.learning_rate_factor;
    if (options_.optimizer == OptimizerKind::kSgd) {
      for (std::size_t i = 0; i < p.master.size(); ++i) {
        p.master[i] -=
            static_cast<float>(rate) *
            (p.accumulator[i] * factor + static_cast<float>(hyper.weight_decay) * p.master[i]);
      }
      return;
    }
    const double t = static_cast<double>(steps_);
    const auto keep = static_cast<float>(1.0 - rate * hyper.weight_decay);
    const auto beta1 = static_cast<float>(hyper.beta1),
               new1 = static_cast<float>(1.0 - hyper.beta1);
    const auto beta2 = static_cast<float>(hyper.beta2),
               new2 = static_cast<float>(1.0 - hyper.beta2);
    const auto size = static_cast<float>(rate / (1.0 - std::pow(hyper.beta1, t)));
    const auto unbias = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(hyper.beta2, t)));
    const auto eps = static_cast<float>(hyper.eps);
    for (std::size_t i = 0; i < p.master.size(); ++i) {
      const float g = p.accumulator[i] * factor;
      p.m[i] = beta1 * p.m[i] + new1 * g;
      p.v[i] = beta2 * p.v[i] + (new2 * g) * g;
      p.master[i] = p.master[i] * keep - (size * p.m[i]) / (std::sqrt(p.v[i]) * unbias + eps);
    }
  }

  Shape shape_;
  EngineOptions options_;
  std::vector<GroupSpec> groups_;
  std::map<std::string, Parameter> parameters_;
  std::int64_t steps_ = 0;
};

}  // namespace zero3::test::toy
