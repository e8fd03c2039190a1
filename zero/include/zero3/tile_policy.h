#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <zero3/layer.h>

namespace zero3 {

/// How token-wise work is cut into tiles of rows. Each rank decides for itself: weights are
/// gathered once for all tiles, so nothing about a tile is agreed between ranks.
struct TilePolicy {
  enum class Kind : std::uint8_t {
    kAuto,          ///< kAutoTileRows
    kNone,          ///< one tile
    kRows,          ///< tiles of `value` rows
    kCount,         ///< `value` tiles
    kSeqPerHidden,  ///< ceil(seq / hidden) tiles (ALST, arXiv 2506.13996, section 3.1)
  };
  Kind kind = Kind::kAuto;
  std::int64_t value = 0;
};
/// Rows of a tile at kAuto: beyond that a product gains nothing more (docs/performance.md).
inline constexpr std::int64_t kAutoTileRows = 1024;

/// "auto", "none", "rows=R", "count=N", "seq/hidden". Throws UsageError for anything else.
[[nodiscard]] TilePolicy parse_tile_policy(std::string_view text);
[[nodiscard]] std::string name_of(const TilePolicy& policy);

/// Rows of every tile but the last of a micro-batch: a multiple of `granule_rows`, at least one
/// granule, so that results do not depend on the policy (gemm.h). 0 rows have no tile. Throws
/// UsageError for more tiles (kCount) than the micro-batch has rows.
[[nodiscard]] std::int64_t tile_rows(const TilePolicy& policy, TokenShape tokens,
                                     std::int64_t hidden, std::int64_t granule_rows);
/// How many tiles that gives.
[[nodiscard]] std::int64_t tile_count(const TilePolicy& policy, TokenShape tokens,
                                      std::int64_t hidden, std::int64_t granule_rows);

}  // namespace zero3
