#include "init.h"

#include <algorithm>
#include <array>

#include <zero3/philox.h>

namespace zero3 {
namespace {

constexpr std::uint32_t kInitPurpose = 1;

/// Elements 4i … 4i + 3 of a parameter.
std::array<float, 4> normal_quad(std::int64_t quad, std::uint64_t name, PhiloxKey key) {
  const auto index = static_cast<std::uint64_t>(quad);
  const PhiloxCounter words =
      philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
              static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32)},
             key);
  const auto [a, b] = normal_pair(words[0], words[1]);
  const auto [c, d] = normal_pair(words[2], words[3]);
  return {a, b, c, d};
}

}  // namespace

void initial_values(std::span<float> values, const ParamSpec& param, std::int64_t first,
                    std::uint64_t seed) {
  if (param.init.kind != Init::Kind::kNormal) {
    std::fill(values.begin(), values.end(), param.init.kind == Init::Kind::kOnes ? 1.0F : 0.0F);
    return;
  }
  const PhiloxKey key = philox_key(seed, kInitPurpose);
  const std::uint64_t name = name_hash(param.name);
  const auto count = static_cast<std::int64_t>(values.size());
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t element = first + i;
    const std::array<float, 4> quad = normal_quad(element / 4, name, key);
    for (std::int64_t lane = element % 4; lane < 4 && i < count; ++lane, ++i) {
      values[static_cast<std::size_t>(i)] =
          param.init.standard_deviation * quad[static_cast<std::size_t>(lane)];
    }
  }
}

}  // namespace zero3
