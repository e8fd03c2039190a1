#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <zero3/zero3.h>
#include "support/engine_ops.h"
#include "support/toy_math.h"

namespace zero3::test::toy {

enum LayerParam { kEmpty, kW1, kBias, kW2, kScale, kShift };

inline GroupSpec layer_group(const Shape& s, std::size_t index) {
  const std::string name = "layer." + std::to_string(index);
  const auto extent = [](std::size_t n) { return static_cast<std::int64_t>(n); };
  return {.name = name,
          .params = {{.name = name + ".empty", .shape = {0, 3}},
                     {.name = name + ".w1",
                      .shape = {extent(s.hidden), extent(s.width)},
                      .init = Init::normal(0.3F)},
                     {.name = name + ".bias", .shape = {extent(s.hidden)}, .init = Init::zeros()},
                     {.name = name + ".w2",
                      .shape = {extent(s.width), extent(s.hidden)},
                      .init = Init::normal(0.2F)},
                     // Gathered in fp32 whatever the others are: a sub-group of its own in bf16.
                     {.name = name + ".scale",
                      .shape = {extent(s.width)},
                      .init = Init::ones(),
                      .dtype = DType::kF32},
                     {.name = name + ".shift",
                      .shape = {extent(s.width)},
                      .init = Init::normal(0.1F),
                      .trainable = false}}};
}

inline GroupSpec table_group(const Shape& s, std::string name, int uses) {
  return {
      .name = name,
      .params = {{.name = name + ".table",
                  .shape = {static_cast<std::int64_t>(s.vocab), static_cast<std::int64_t>(s.width)},
                  .init = Init::normal(0.5F)}},
      .uses = uses};
}

struct LayerFailure : std::runtime_error {
  LayerFailure() : std::runtime_error("a layer's own") {}
};

class ToyLayer final : public Layer {
 public:
  /// `failing`: names a layer whose next backward throws.
  ToyLayer(const Shape& shape, std::size_t index, std::optional<std::size_t>* failing = nullptr)
      : shape_(shape), index_(index), failing_(failing) {}

  [[nodiscard]] GroupSpec group() const override { return layer_group(shape_, index_); }
  [[nodiscard]] LayerMemory memory(TokenShape) const override {
    return {.saved = bytes_of(Elements(static_cast<std::int64_t>(saved_size(shape_))), DType::kF32),
            .workspace = Bytes(0)};
  }
  void forward(const LayerContext& context, const Gathered& weights, TensorView in, TensorView out,
               TensorView saved, Pass) override {
    const TensorView kept = saved.as(DType::kF32);
    task(context.stream, "forward " + std::to_string(index_), {out, kept},
         [s = shape_, p = Parameters(weights), x = host(in), y = host(out), k = host(kept)] {
           const Values values(p);
           layer_forward(s, values.weights(), x, y, k);
         });
  }
  void backward(const LayerContext& context, const Gathered& weights, const Gradients& grads,
                TensorView in, TensorView saved, TensorView gradient) override {
    if (failing_ != nullptr && *failing_ == index_) {
      failing_->reset();
      throw LayerFailure();
    }
    const LayerGradients g{host(grads[kW1]), host(grads[kBias]), host(grads[kW2]),
                           host(grads[kScale])};
    task(context.stream, "backward " + std::to_string(index_), {},
         [s = shape_, p = Parameters(weights), g, x = host(in), k = host(saved.as(DType::kF32)),
          d = host(gradient)] {
           const Values values(p);
           layer_backward(s, values.weights(), g, x, k, d);
         });
  }

 private:
  struct Parameters {
    explicit Parameters(const Gathered& weights)
        : w1(weights[kW1]),
          bias(weights[kBias]),
          w2(weights[kW2]),
          scale(weights[kScale]),
          shift(weights[kShift]) {}
    Elements32 w1, bias, w2, scale, shift;
  };
  struct Values {
    explicit Values(const Parameters& p)
        : w1(p.w1.read()),
          bias(p.bias.read()),
          w2(p.w2.read()),
          scale(p.scale.read()),
          shift(p.shift.read()) {}
    [[nodiscard]] LayerWeights weights() const { return {w1, bias, w2, scale, shift}; }
    std::vector<float> w1, bias, w2, scale, shift;
  };

  Shape shape_;
  std::size_t index_;
  std::optional<std::size_t>* failing_;
};

}  // namespace zero3::test::toy
