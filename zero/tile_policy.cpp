#include <zero3/tile_policy.h>

#include <algorithm>
#include <charconv>

#include <zero3/error.h>

namespace zero3 {
namespace {

using Kind = TilePolicy::Kind;

/// The number behind "rows=" or "count="; 0: it is none.
std::int64_t number_behind(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return 0;
  text.remove_prefix(prefix.size());
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value > 0 ? value : 0;
}

}  // namespace

TilePolicy parse_tile_policy(std::string_view text) {
  if (text == "auto") return {};
  if (text == "none") return {.kind = Kind::kNone};
  if (text == "seq/hidden") return {.kind = Kind::kSeqPerHidden};
  if (const std::int64_t rows = number_behind(text, "rows="); rows > 0) {
    return {.kind = Kind::kRows, .value = rows};
  }
  if (const std::int64_t count = number_behind(text, "count="); count > 0) {
    return {.kind = Kind::kCount, .value = count};
  }
  throw UsageError(concat("'", text,
                          "' is no way to cut tiles; choose auto, none, rows=R, count=N "
                          "or seq/hidden, with numbers from 1"));
}

std::string name_of(const TilePolicy& policy) {
  switch (policy.kind) {
    case Kind::kAuto:
      return "auto";
    case Kind::kNone:
      return "none";
    case Kind::kRows:
      return concat("rows=", policy.value);
    case Kind::kCount:
      return concat("count=", policy.value);
    case Kind::kSeqPerHidden:
      return "seq/hidden";
  }
  return "unknown";
}

std::int64_t tile_rows(const TilePolicy& policy, TokenShape tokens, std::int64_t hidden,
                       std::int64_t granule_rows) {
  const std::int64_t rows = tokens.rows();
  if (rows == 0) return 0;
  std::int64_t wanted = rows;
  switch (policy.kind) {
    case Kind::kAuto:
      wanted = kAutoTileRows;
      break;
    case Kind::kNone:
      break;
    case Kind::kRows:
      wanted = policy.value;
      break;
    case Kind::kCount:
      ZERO3_CHECK(policy.value <= rows, policy.value, " tiles of a micro-batch of ", rows,
                  " rows; give at most as many tiles as rows");
      wanted = div_ceil(rows, policy.value);
      break;
    case Kind::kSeqPerHidden:
      wanted = div_ceil(rows, div_ceil(tokens.seq, hidden));
      break;
  }
  return std::min(rows, div_ceil(wanted, granule_rows) * granule_rows);
}

std::int64_t tile_count(const TilePolicy& policy, TokenShape tokens, std::int64_t hidden,
                        std::int64_t granule_rows) {
  if (tokens.rows() == 0) return 0;
  return div_ceil(tokens.rows(), tile_rows(policy, tokens, hidden, granule_rows));
}

}  // namespace zero3
