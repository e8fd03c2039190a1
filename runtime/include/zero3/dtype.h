#pragma once

#include <cstdint>
#include <iosfwd>
#include <string_view>

namespace zero3 {

enum class DType : std::uint8_t { kF32, kBF16, kF16, kF64, kU8, kU16, kU32, kU64, kI32, kI64 };

/// Bytes of one element.
[[nodiscard]] constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return 1;
    case DType::kBF16:
    case DType::kF16:
    case DType::kU16:
      return 2;
    case DType::kF32:
    case DType::kU32:
    case DType::kI32:
      return 4;
    case DType::kF64:
    case DType::kU64:
    case DType::kI64:
      return 8;
  }
  return 0;
}

[[nodiscard]] constexpr bool is_floating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF64;
}

/// "fp32", "bf16", "fp16", "fp64", "uint8", …
[[nodiscard]] std::string_view name_of(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);

/// The dtype of that name ("fp32", "bf16", …). Throws UsageError that lists the names.
[[nodiscard]] DType parse_dtype(std::string_view name);

}  // namespace zero3
