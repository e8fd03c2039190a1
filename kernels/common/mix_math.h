#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace zero3 {

/// SplitMix64's finaliser (Steele, Lea, Flood 2014, variant 13 of Stafford).
ZERO3_HD [[nodiscard]] constexpr std::uint64_t splitmix64_finalise(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

/// The generator's increment keeps index 0 with bits 0 from being mixed to 0.
ZERO3_HD [[nodiscard]] constexpr std::uint64_t mix_element(std::uint64_t index,
                                                           std::uint32_t bits) {
  return splitmix64_finalise(splitmix64_finalise(index + 0x9e3779b97f4a7c15U) + bits);
}

}  // namespace zero3
