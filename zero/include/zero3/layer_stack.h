#pragma once

#include <memory>
#include <vector>

#include <zero3/activation_store.h>
#include <zero3/buffer.h>
#include <zero3/engine.h>
#include <zero3/layer.h>

namespace zero3 {

struct LayerStackOptions {
  std::int64_t width = 0;
  /// Of the tensors between layers.
  DType dtype = DType::kF32;
  /// The largest micro-batch.
  TokenShape tokens = {};
  /// Where layer inputs wait, and whether each forward runs again in the backward.
  ActivationCheckpoints checkpoints = {};
  std::int64_t granule_rows = kDefaultGranuleRows;
};

/// A chain of layers around which parameters are gathered and gradients reduced.
///
/// Life: construction registers each layer's group, in order; build() after Engine::build()
/// allocates everything that the stack will ever hold. The engine outlives it.
class LayerStack {
 public:
  LayerStack(Engine& engine, std::vector<std::unique_ptr<Layer>> layers, LayerStackOptions options);
  LayerStack(const LayerStack&) = delete;
  LayerStack& operator=(const LayerStack&) = delete;
  ~LayerStack();

  /// Activations, and with recompute checkpoints; the workspace is the caller's.
  [[nodiscard]] MemoryPlan plan() const;
  [[nodiscard]] std::vector<GroupId> groups() const;
  /// Allocates. `workspace` (kU8) is used during each call and shared with the caller's own
  /// kernels; at least workspace_bytes().
  void build(TensorView workspace);
  [[nodiscard]] Bytes workspace_bytes() const;

  /// [rows, width], to be written before forward(), in stream order. Begins a pass: a training
  /// forward before it can have no backward any more.
  [[nodiscard]] TensorView input(TokenShape tokens);
  /// Runs all layers; the result is valid until the next call. `kRecompute` is not a pass of a
  /// whole stack. Layers draw at random by `place`, here and in the backward; it matters to no
  /// other.
  [[nodiscard]] TensorView forward(TokenShape tokens, Pass pass, BatchPlace place = {});
  /// After forward(…, kTraining): `gradient` [rows, width] of the output becomes that of the input.
  void backward(TensorView gradient);

  [[nodiscard]] Gemm& gemm();
  /// Of the layers' inputs: what it plans, and what has moved.
  [[nodiscard]] const ActivationStore& inputs() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero3
