#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <zero3/units.h>

namespace zero3::program {

/// "4096", "64K", "2GiB", "1.5G": K, M, G and T are powers of 1024, with or without "iB". Throws
/// UsageError.
[[nodiscard]] std::int64_t parse_size(std::string_view text);
/// "250ms", "30s", "5min", "2h"; a bare number is seconds. Throws UsageError.
[[nodiscard]] std::chrono::milliseconds parse_duration(std::string_view text);
/// A whole number, which may have a size's suffix, in [least, most]. Throws UsageError.
[[nodiscard]] std::int64_t parse_count(std::string_view text, std::int64_t least,
                                       std::int64_t most);
/// A finite number in [least, below). Throws UsageError.
[[nodiscard]] double parse_number_in(std::string_view text, double least, double below);

/// "1 rank", "2 ranks".
[[nodiscard]] std::string counted(std::int64_t count, std::string_view noun);

}  // namespace zero3::program
