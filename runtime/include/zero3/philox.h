#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace zero3 {

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
/// SC'11): four random words that depend on counter and key alone, so a draw has the same value on
/// every rank, device and thread.
using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

[[nodiscard]] constexpr PhiloxCounter philox(PhiloxCounter c, PhiloxKey k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
    k[0] += 0x9E3779B9U;
    k[1] += 0xBB67AE85U;
  }
  return c;
}

/// The key of a run's stream of draws: the run's seed and what the draws are for.
[[nodiscard]] constexpr PhiloxKey philox_key(std::uint64_t seed, std::uint32_t purpose) {
  const PhiloxCounter mixed = philox({static_cast<std::uint32_t>(seed),
                                      static_cast<std::uint32_t>(seed >> 32), purpose, 0x7A65726FU},
                                     {0x33U, purpose});
  return {mixed[0], mixed[1]};
}

/// Uniform in [0, 1): the upper 24 bits.
[[nodiscard]] constexpr float uniform_float(std::uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24F;
}

/// Two independent standard normal values (Box and Muller, 1958), computed in double.
[[nodiscard]] inline std::array<float, 2> normal_pair(std::uint32_t a, std::uint32_t b) {
  constexpr double kTwoPi = 6.283185307179586476925286766559;
  const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(a) + 1.0) * 0x1p-32));
  const double angle = kTwoPi * static_cast<double>(b) * 0x1p-32;
  return {static_cast<float>(radius * std::cos(angle)),
          static_cast<float>(radius * std::sin(angle))};
}

}  // namespace zero3
