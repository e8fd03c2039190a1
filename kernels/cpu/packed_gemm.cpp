#include "cpu/packed_gemm.h"

#include <algorithm>
#include <limits>

#include <zero3/half.h>
#include <zero3/internal/cpu_stream.h>

#include "cpu/parallel.h"

namespace zero3::cpu {
namespace {

// Blocks in the manner of Goto and van de Geijn 2008: a panel of b of that depth stays in the
// first-level cache, a block of a in the second.
constexpr std::int64_t kDepthBlock = 256;
constexpr std::int64_t kRowBlock = 128;
// A tile is one thread's piece of c: wide enough to hide packing a, high enough to hide packing b.
constexpr std::int64_t kTileCols = 8 * 48;
constexpr std::int64_t kMaxTileRows = 512;
static_assert(kTileCols % kPanel == 0);

struct Scratch {
  float* a;
  float* b;
  float* sums;
};
constexpr std::int64_t kScratchFloats =
    kRowBlock * kDepthBlock + kDepthBlock * kTileCols + kMaxTileRows * kTileCols;

struct Range {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

struct Tile {
  Range rows, cols;
};

template <class T>
T* element(void* data, std::int64_t index) {
  return static_cast<T*>(data) + index;
}

float bias_at(const Product& p, std::int64_t col) {
  if (p.bias == nullptr) return 0.0F;
  return p.bias_dtype == DType::kF32
             ? static_cast<const float*>(p.bias)[col]
             : static_cast<float>(static_cast<const BFloat16*>(p.bias)[col]);
}

// Rounds the sums of one panel into c, with bias.
template <class T>
void store_panel(const Product& p, Range rows, Range cols, Into into, const float* sums) {
  float bias[kPanel] = {};
  for (std::int64_t j = 0; j < cols.size(); ++j) bias[j] = bias_at(p, cols.begin + j);
  for (std::int64_t row = rows.begin; row < rows.end; ++row, sums += kPanel) {
    T* c = element<T>(p.c, row * p.cols + cols.begin);
    for (std::int64_t j = 0; j < cols.size(); ++j) {
      const float sum = sums[j] + bias[j];
      c[j] = static_cast<T>(into == Into::kAccumulate ? static_cast<float>(c[j]) + sum : sum);
    }
  }
}

// c's tile = or += a · b over a range of the depth.
void add_depth(const Product& p, const Tile& tile, Range depth, Into into, const Scratch& scratch) {
  const bool one_block = depth.size() <= kDepthBlock;
  // Sums may be kept in c itself where it is fp32 and nothing is added to the finished sum.
  const bool direct =
      p.c_dtype == DType::kF32 && p.bias == nullptr && (into == Into::kReplace || one_block);
  for (std::int64_t k = depth.begin; k < depth.end; k += kDepthBlock) {
    const std::int64_t block_depth = std::min(kDepthBlock, depth.end - k);
    pack_panels(scratch.b, p.b, k, tile.cols.begin, block_depth, tile.cols.size());
    for (std::int64_t row = tile.rows.begin; row < tile.rows.end; row += kRowBlock) {
      const std::int64_t rows = std::min(kRowBlock, tile.rows.end - row);
      const Block a = load_block(scratch.a, p.a, row, k, rows, block_depth);
      for (std::int64_t col = tile.cols.begin; col < tile.cols.end; col += kPanel) {
        const float* panel = scratch.b + (col - tile.cols.begin) * block_depth;
        float* sums = scratch.sums + (col - tile.cols.begin) * kMaxTileRows +
                      (row - tile.rows.begin) * kPanel;
        const bool first = k == depth.begin;
        if (direct && col + kPanel <= tile.cols.end) {
          multiply_panel(element<float>(p.c, row * p.cols + col), p.cols,
                         first ? into : Into::kAccumulate, a, panel, rows, block_depth);
        } else {
          multiply_panel(sums, kPanel, first ? Into::kReplace : Into::kAccumulate, a, panel, rows,
                         block_depth);
        }
      }
    }
  }
  for (std::int64_t col = tile.cols.begin; col < tile.cols.end; col += kPanel) {
    if (direct && col + kPanel <= tile.cols.end) continue;
    const Range cols{col, std::min(col + kPanel, tile.cols.end)};
    const float* sums = scratch.sums + (col - tile.cols.begin) * kMaxTileRows;
    if (p.c_dtype == DType::kF32) {
      store_panel<float>(p, tile.rows, cols, into, sums);
    } else {
      store_panel<BFloat16>(p, tile.rows, cols, into, sums);
    }
  }
}

struct Grid {
  std::int64_t row_tiles = 1, col_tiles = 1;
};

// The grid with the least time, when threads take equal tiles in turn: a tile costs its
// multiplications and the packing of its rows and columns, of which an element costs as much as
// kPackingCost multiplications (measured: 0.4 ns of 0.05).
Grid make_grid(const Product& p, int threads) {
  constexpr std::int64_t kPackingCost = 8;
  constexpr std::int64_t kMostExtra = 16;
  const Grid least{div_ceil(p.rows, kMaxTileRows), div_ceil(p.cols, kTileCols)};
  const std::int64_t extra = std::min<std::int64_t>(threads, kMostExtra);
  Grid best = least;
  std::int64_t best_cost = std::numeric_limits<std::int64_t>::max();
  for (Grid grid = least; grid.row_tiles < least.row_tiles + extra; ++grid.row_tiles) {
    const std::int64_t rows = round_up(div_ceil(p.rows, grid.row_tiles), kTileRows);
    for (grid.col_tiles = least.col_tiles; grid.col_tiles < least.col_tiles + extra;
         ++grid.col_tiles) {
      const std::int64_t cols = round_up(div_ceil(p.cols, grid.col_tiles), kPanel);
      const std::int64_t turns = div_ceil(grid.row_tiles * grid.col_tiles, threads);
      const std::int64_t cost = turns * (rows * cols + kPackingCost * (rows + cols));
      if (cost < best_cost) {
        best_cost = cost;
        best = grid;
      }
    }
  }
  return best;
}

// Piece `index` of [0, size) cut into `pieces` multiples of `unit`, as equal as can be.
Range piece(std::int64_t size, std::int64_t pieces, std::int64_t unit, std::int64_t index) {
  const std::int64_t units = div_ceil(size, unit);
  return {std::min(size, units * index / pieces * unit),
          std::min(size, units * (index + 1) / pieces * unit)};
}

}  // namespace

void packed_gemm(const Product& product, float* workspace) {
  const Grid grid = make_grid(product, internal::current_threads());
  parallel_tasks(grid.row_tiles * grid.col_tiles, [&](std::int64_t task, int thread) {
    // Tiles that share columns of b follow one another.
    const Tile tile{piece(product.rows, grid.row_tiles, kTileRows, task % grid.row_tiles),
                    piece(product.cols, grid.col_tiles, kPanel, task / grid.row_tiles)};
    float* own = workspace + thread * kScratchFloats;
    const Scratch scratch{own, own + kRowBlock * kDepthBlock,
                          own + kRowBlock * kDepthBlock + kDepthBlock * kTileCols};
    Into into = product.into;
    for (std::int64_t k = 0; k < product.depth; k += product.depth_granule) {
      add_depth(product, tile, {k, std::min(k + product.depth_granule, product.depth)}, into,
                scratch);
      into = Into::kAccumulate;
    }
  });
}

Bytes packed_gemm_workspace(int threads) {
  return Bytes(threads * kScratchFloats * static_cast<std::int64_t>(sizeof(float)));
}

}  // namespace zero3::cpu
