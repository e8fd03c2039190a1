#pragma once

#include <algorithm>
#include <cstdint>

#include <zero3/gemm.h>
#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3::trainer {

/// Targets with this value count for nothing.
inline constexpr std::int32_t kIgnoreToken = -100;

struct LossHeadShape {
  /// `rows` is the largest number of token rows.
  std::int64_t rows = 0, width = 0, vocab = 0;
  float rms_norm_eps = 1e-6F;
  /// Of token tensors, weights and products: kF32 or kBF16. Logits and losses are wider.
  DType dtype = DType::kF32;
  std::int64_t granule_rows = kDefaultGranuleRows;
  /// Of the stream that will run it.
  int threads = 1;
};

/// Final norm, logits and cross-entropy, one granule of rows after another, so that the logits of
/// one granule are all that ever exist. Losses are sums over tokens. All calls enqueue on the
/// stream given.
class LossHead {
 public:
  explicit LossHead(const LossHeadShape& shape) : shape_(shape) {}

  struct Weights {
    TensorView norm;   ///< [width]
    TensorView table;  ///< [vocab, width]
  };
  /// fp32, added to.
  struct WeightGradients {
    TensorView norm, table;
  };
  struct Call {
    Stream& stream;
    Gemm& gemm;
    /// kU8, workspace_bytes().
    TensorView workspace;
    /// int32 and fp64, one per row.
    TensorView targets, row_losses;
    /// Receives the sum of the row losses; fp64, one element.
    TensorView loss_sum;
  };

  [[nodiscard]] Bytes workspace_bytes() const;
  /// Loss of `hidden` [rows, width].
  void evaluate(const Call& call, const Weights& weights, TensorView hidden) const;
  /// The same, and the backward at once: `hidden` becomes the gradient for itself, times
  /// `loss_scale`.
  void train(const Call& call, const Weights& weights, const WeightGradients& gradients,
             TensorView hidden, float loss_scale) const;

 private:
  struct Scratch;
  /// Rows that are worked on at a time.
  [[nodiscard]] std::int64_t block_rows() const {
    return std::min(shape_.granule_rows, shape_.rows);
  }
  [[nodiscard]] Scratch carve(class Carver& carver) const;
  void run(const Call& call, const Weights& weights, const WeightGradients* gradients,
           TensorView hidden, float loss_scale) const;

  LossHeadShape shape_;
};

}  // namespace zero3::trainer
