#pragma once

#include <bit>
#include <cstdint>

#include <zero3/dtype.h>

namespace zero3 {

/// bfloat16 storage: the upper half of an fp32. Conversion rounds to nearest, ties to even; a NaN
/// stays a NaN. Arithmetic is done in fp32.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit constexpr BFloat16(float value) : bits(round(value)) {}
  explicit constexpr operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  friend constexpr bool operator==(BFloat16 a, BFloat16 b) = default;

 private:
  // Selects on floats and no early return: loops over it are vectorised.
  static constexpr std::uint16_t round(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t nearest = u + 0x7fffU + ((u >> 16) & 1U);
    const std::uint32_t chosen = value != value ? (u | 0x00400000U) : nearest;
    return static_cast<std::uint16_t>(chosen >> 16);
  }
};

/// IEEE half precision storage. Conversion rounds to nearest, ties to even; overflow gives
/// infinity, a NaN stays a NaN.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  explicit constexpr Float16(float value) : bits(round(value)) {}
  explicit constexpr operator float() const { return widen(bits); }
  friend constexpr bool operator==(Float16 a, Float16 b) = default;

 private:
  // Branch-free after F. Giesen, "float->half variants" (2012), so that loops over it are
  // vectorised.
  static constexpr std::uint16_t round(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000U;
    const std::uint32_t magnitude_bits = u & 0x7fffffffU;
    const auto magnitude = std::bit_cast<float>(magnitude_bits);
    // 0.5 has its last bit at 2^-24, the smallest subnormal half: the sum rounds there.
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(magnitude + 0.5F) - 0x3f000000U;
    const std::uint32_t odd = (magnitude_bits >> 13) & 1U;
    const std::uint32_t normal = (magnitude_bits - (112U << 23) + 0xfffU + odd) >> 13;
    std::uint32_t half = magnitude < 0x1p-14F ? subnormal : normal;
    half = magnitude >= 65536.0F ? 0x7c00U : half;
    half = value != value ? 0x7e00U : half;
    return static_cast<std::uint16_t>(sign | half);
  }
  static constexpr float widen(std::uint16_t bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t shifted = static_cast<std::uint32_t>(bits & 0x7fffU) << 13;
    const std::uint32_t exponent = shifted & 0x0f800000U;
    const std::uint32_t normal = shifted + (112U << 23);
    // A subnormal's bits under the exponent of 2^-14: what is above 2^-14 is its value.
    const float above = std::bit_cast<float>(shifted + (113U << 23)) - 0x1p-14F;
    std::uint32_t single = exponent == 0U ? std::bit_cast<std::uint32_t>(above) : normal;
    single = exponent == 0x0f800000U ? normal + (112U << 23) : single;
    return std::bit_cast<float>(sign | single);
  }
};

template <class T>
inline constexpr DType kDTypeOf = DType::kU8;
template <>
inline constexpr DType kDTypeOf<float> = DType::kF32;
template <>
inline constexpr DType kDTypeOf<double> = DType::kF64;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<Float16> = DType::kF16;
template <>
inline constexpr DType kDTypeOf<std::uint16_t> = DType::kU16;
template <>
inline constexpr DType kDTypeOf<std::uint32_t> = DType::kU32;
template <>
inline constexpr DType kDTypeOf<std::uint64_t> = DType::kU64;
template <>
inline constexpr DType kDTypeOf<std::int32_t> = DType::kI32;
template <>
inline constexpr DType kDTypeOf<std::int64_t> = DType::kI64;

}  // namespace zero3
