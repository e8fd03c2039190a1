#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include <zero3/engine.h>
#include <zero3/gemm.h>
#include <zero3/layer.h>
#include <zero3/memory_plan.h>
#include <zero3/tile_policy.h>

namespace zero3 {

/// Rows of a micro-batch that a function works on at a time. A tensor of the region has as many
/// rows as the micro-batch has tokens; here it is the view of the tile's.
struct TokenTile {
  /// Of the micro-batch: random draws that depend on it are the same for every policy.
  std::int64_t first_row = 0, rows = 0;
  std::span<const TensorView> inputs;
  const Gathered& weights;
  Stream& stream;
  Gemm& gemm;
  /// kU8, what TokenwiseOptions::workspace asks for.
  TensorView workspace;
};

/// What a function does, by enqueueing on the tile's stream.
struct TokenwiseFunction {
  /// Writes the tile's rows of the outputs.
  std::function<void(const TokenTile& tile, std::span<const TensorView> outputs)> forward;
  /// From the rows of the outputs' gradients: writes those of the inputs' gradients, of which the
  /// ones that nobody needs are empty, and adds to `grads` (fp32; empty where frozen).
  std::function<void(const TokenTile& tile, std::span<const TensorView> output_gradients,
                     std::span<const TensorView> input_gradients, const Gradients& grads)>
      backward;
};

struct TokenwiseOptions {
  /// The largest micro-batch, whose tiles smaller ones have too.
  TokenShape tokens = {};
  TilePolicy tile = {};
  /// Width of the model, for tiles of seq/hidden.
  std::int64_t hidden = 1;
  /// Bytes that one call needs for that many rows; null: none.
  std::function<Bytes(std::int64_t rows)> workspace = nullptr;
  std::int64_t granule_rows = kDefaultGranuleRows;
};

/// A user's function that handles each token by itself, such as an MLP, a norm or a head, run tile
/// by tile so that what it needs in between is bounded by a tile.
///
/// The group's weights are gathered once for all tiles of a pass, and its gradients reported once,
/// at the end of the backward: the number of tiles is this rank's own business, and a rank without
/// tokens takes part. Tiles are whole granules, and the gemm given to the function sums granule by
/// granule, so results do not depend on the policy (gemm.h); a function that sums over rows itself
/// keeps that if it adds row after row.
///
/// When the function throws, the weights are released, no gradient is reported and the step is
/// unusable until Engine::reset(). The engine outlives the region.
class TokenwiseRegion {
 public:
  /// Throws UsageError for more tiles (TilePolicy::Kind::kCount) than the largest micro-batch has
  /// rows.
  TokenwiseRegion(Engine& engine, GroupId group, TokenwiseFunction function,
                  const TokenwiseOptions& options);
  TokenwiseRegion(const TokenwiseRegion&) = delete;
  TokenwiseRegion& operator=(const TokenwiseRegion&) = delete;
  ~TokenwiseRegion();

  /// Of the workspace; before build() too.
  [[nodiscard]] MemoryPlan plan() const;
  /// Allocates; after Engine::build().
  void build();

  /// Enqueues on the engine's compute stream; tensors are the caller's, [rows, width] of any width.
  /// Throws UsageError for more tokens than planned, and for a tensor whose elements are no whole
  /// number per row.
  void forward(TokenShape tokens, std::span<const TensorView> inputs,
               std::span<const TensorView> outputs);
  /// `inputs` as the forward had them. An input gradient may be empty. Inside of a micro-step.
  /// Throws UsageError as forward() and Engine::grads() do, and for a function without a backward.
  void backward(TokenShape tokens, std::span<const TensorView> inputs,
                std::span<const TensorView> output_gradients,
                std::span<const TensorView> input_gradients);

  /// Tiles run so far, in both directions.
  [[nodiscard]] std::int64_t tiles_run() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero3
