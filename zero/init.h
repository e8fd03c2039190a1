#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <zero3/param_spec.h>

namespace zero3 {

/// First values of elements [first, first + values.size()) of a parameter; counter-based on (seed,
/// name, element index).
void initial_values(std::span<float> values, const ParamSpec& param, std::int64_t first,
                    std::uint64_t seed);

/// FNV-1a, 64 bits (Fowler, Noll, Vo): identifies a parameter by its name.
[[nodiscard]] constexpr std::uint64_t name_hash(std::string_view name,
                                                std::uint64_t hash = 0xcbf29ce484222325U) {
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

}  // namespace zero3
