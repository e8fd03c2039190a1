#pragma once

#include <cstdint>

#include <zero3/gathered.h>
#include <zero3/gemm.h>
#include <zero3/param_spec.h>
#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// Tokens of a micro-batch: `batch` sequences of `seq`. Token tensors have rows() rows, sequence
/// after sequence.
struct TokenShape {
  std::int64_t batch = 0, seq = 0;
  [[nodiscard]] std::int64_t rows() const { return batch * seq; }
};

/// Why a forward runs.
enum class Pass : std::uint8_t {
  kTraining,   ///< keep in `saved` what the backward needs
  kRecompute,  ///< the same for a backward that follows at once; the output is not needed
  kInference,  ///< only the output is needed; `saved` may be used as scratch
};

/// Bytes that a layer needs for given tokens.
struct LayerMemory {
  Bytes saved;      ///< from a forward until its backward
  Bytes workspace;  ///< during one call
};

/// Which tokens of a training a micro-batch holds: what random draws depend on, so that they are
/// the same for every number of ranks, in a recomputation, and in tiles.
struct BatchPlace {
  std::int64_t step = 0;
  /// Number of its first token among those of the step: micro-batch j · tokens of a micro-batch.
  std::int64_t first_token = 0;
};

/// What every call of a layer gets.
struct LayerContext {
  TokenShape tokens;
  Stream& stream;
  Gemm& gemm;
  /// kU8, at least LayerMemory::workspace bytes.
  TensorView workspace;
  BatchPlace place = {};
  /// A backward follows, now or later.
  bool training = false;
};

/// A layer of a LayerStack: maps token rows [rows, width] to token rows of the same width. It owns
/// no device memory beyond constant tables; parameters, gradients and saved tensors are handed to
/// it. All calls enqueue on the context's stream.
class Layer {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  [[nodiscard]] virtual GroupSpec group() const = 0;
  [[nodiscard]] virtual LayerMemory memory(TokenShape tokens) const = 0;
  /// `in` and `out` do not overlap. `saved` is kU8 of LayerMemory::saved bytes. With kRecompute
  /// `out` is empty.
  virtual void forward(const LayerContext& context, const Gathered& weights, TensorView in,
                       TensorView out, TensorView saved, Pass pass) = 0;
  /// `gradient` holds the gradient of the output and receives that of the input; parameter
  /// gradients are added to `grads`.
  virtual void backward(const LayerContext& context, const Gathered& weights,
                        const Gradients& grads, TensorView in, TensorView saved,
                        TensorView gradient) = 0;

 protected:
  Layer() = default;
};

}  // namespace zero3
