#include <zero3/tokenwise_region.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <zero3/buffer.h>
#include <zero3/error.h>

namespace zero3 {
namespace {

/// Tensors of one role, and the views of the current tile.
class RowTensors {
 public:
  RowTensors(std::span<const TensorView> tensors, std::int64_t rows, const char* role)
      : tensors_(tensors), tile_(tensors.size()) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::int64_t count = tensors[i].count();
      ZERO3_CHECK(rows == 0 ? count == 0 : count % rows == 0, role, ' ', i,
                  " of a token-wise region has ", count, " elements, which is no whole number for ",
                  "each of ", rows, " tokens");
      widths_.push_back(rows == 0 ? 0 : count / rows);
    }
  }
  std::span<const TensorView> tile(std::int64_t begin, std::int64_t rows) {
    for (std::size_t i = 0; i < tile_.size(); ++i)
      tile_[i] = tensors_[i].slice(begin * widths_[i], rows * widths_[i]);
    return tile_;
  }

 private:
  std::span<const TensorView> tensors_;
  std::vector<TensorView> tile_;
  std::vector<std::int64_t> widths_;
};

}  // namespace

struct TokenwiseRegion::State {
  Engine& engine;
  GroupId group;
  TokenwiseFunction function;
  TokenwiseOptions options;
  /// Most rows of a tile: that of the largest micro-batch, so that a smaller one does not need a
  /// larger one, nor has too few rows for a count.
  std::int64_t tile_rows;
  std::optional<Gemm> gemm = std::nullopt;
  Buffer workspace = {};
  std::int64_t tiles_run = 0;

  [[nodiscard]] Bytes workspace_bytes() const {
    if (!options.workspace) return Bytes(0);
    return options.workspace(tile_rows);
  }
  void check(TokenShape tokens) const {
    ZERO3_CHECK(gemm.has_value(), "a token-wise region is used before build()");
    ZERO3_CHECK(tokens.batch >= 0 && tokens.seq >= 0 && tokens.rows() <= options.tokens.rows(),
                "a micro-batch of ", tokens.batch, " x ", tokens.seq,
                " tokens in a token-wise region that was made for ", options.tokens.batch, " x ",
                options.tokens.seq);
  }
  /// Calls `run` with each tile.
  template <class Run>
  void for_each_tile(TokenShape tokens, std::span<const TensorView> inputs, const Gathered& weights,
                     Run run) {
    RowTensors in(inputs, tokens.rows(), "input");
    for (std::int64_t begin = 0; begin < tokens.rows(); begin += tile_rows) {
      const std::int64_t rows = std::min(tile_rows, tokens.rows() - begin);
      ++tiles_run;
      run(TokenTile{.first_row = begin,
                    .rows = rows,
                    .inputs = in.tile(begin, rows),
                    .weights = weights,
                    .stream = engine.compute(),
                    .gemm = *gemm,
                    .workspace = workspace.empty() ? TensorView() : workspace.view()});
    }
  }
};

TokenwiseRegion::TokenwiseRegion(Engine& engine, GroupId group, TokenwiseFunction function,
                                 const TokenwiseOptions& options)
    : state_(new State{
          engine, group, std::move(function), options,
          tile_rows(options.tile, options.tokens, options.hidden, options.granule_rows)}) {
  ZERO3_CHECK(state_->function.forward, "a token-wise region needs a forward");
}

TokenwiseRegion::~TokenwiseRegion() = default;

MemoryPlan TokenwiseRegion::plan() const {
  MemoryPlan plan;
  plan[MemoryTag::kWorkspace] = aligned(state_->workspace_bytes());
  return plan;
}

void TokenwiseRegion::build() {
  State& s = *state_;
  ZERO3_CHECK(!s.gemm.has_value(), "a token-wise region is built twice");
  if (const Bytes bytes = s.workspace_bytes(); bytes.count() > 0) {
    s.workspace =
        Buffer(Elements(bytes.count()), DType::kU8, MemoryTag::kWorkspace, s.engine.compute());
  }
  s.gemm.emplace(s.engine.compute(), s.options.granule_rows);
}

void TokenwiseRegion::forward(TokenShape tokens, std::span<const TensorView> inputs,
                              std::span<const TensorView> outputs) {
  State& s = *state_;
  s.check(tokens);
  RowTensors out(outputs, tokens.rows(), "output");
  const Gathered weights = s.engine.gather(s.group);
  s.for_each_tile(tokens, inputs, weights, [&](const TokenTile& tile) {
    s.function.forward(tile, out.tile(tile.first_row, tile.rows));
  });
}

void TokenwiseRegion::backward(TokenShape tokens, std::span<const TensorView> inputs,
                               std::span<const TensorView> output_gradients,
                               std::span<const TensorView> input_gradients) {
  State& s = *state_;
  s.check(tokens);
  ZERO3_CHECK(s.function.backward, "a token-wise region without a backward runs one");
  RowTensors d_out(output_gradients, tokens.rows(), "output gradient");
  RowTensors d_in(input_gradients, tokens.rows(), "input gradient");
  const Gathered weights = s.engine.gather(s.group);
  const Gradients grads = s.engine.grads(s.group);
  s.for_each_tile(tokens, inputs, weights, [&](const TokenTile& tile) {
    s.function.backward(tile, d_out.tile(tile.first_row, tile.rows),
                        d_in.tile(tile.first_row, tile.rows), grads);
  });
}

std::int64_t TokenwiseRegion::tiles_run() const {
  return state_->tiles_run;
}

}  // namespace zero3
