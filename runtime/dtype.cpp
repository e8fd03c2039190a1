#include <zero3/dtype.h>

#include <array>
#include <iomanip>
#include <ostream>
#include <string>
#include <utility>

#include <zero3/error.h>
#include <zero3/units.h>

namespace zero3 {
namespace {

constexpr std::array kNames = {std::pair{DType::kF32, "fp32"},   std::pair{DType::kBF16, "bf16"},
                               std::pair{DType::kF16, "fp16"},   std::pair{DType::kF64, "fp64"},
                               std::pair{DType::kU8, "uint8"},   std::pair{DType::kU16, "uint16"},
                               std::pair{DType::kU32, "uint32"}, std::pair{DType::kU64, "uint64"},
                               std::pair{DType::kI32, "int32"},  std::pair{DType::kI64, "int64"}};

}  // namespace

std::string_view name_of(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "unknown dtype";
}

std::ostream& operator<<(std::ostream& out, DType dtype) {
  return out << name_of(dtype);
}

DType parse_dtype(std::string_view name) {
  std::string known;
  for (const auto& [value, known_name] : kNames) {
    if (name == known_name) return value;
    known += concat(known.empty() ? "" : ", ", known_name);
  }
  throw UsageError(concat("unknown dtype '", name, "'; choose one of ", known));
}

std::ostream& operator<<(std::ostream& out, Elements n) {
  return out << n.count();
}

std::ostream& operator<<(std::ostream& out, Bytes n) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (n.count() < 1024 && n.count() > -1024) return out << n.count() << " bytes";
  double value = static_cast<double>(n.count()) / 1024.0;
  std::size_t unit = 0;
  // From 1023.95 on one digit after the point would print 1024.0.
  while ((value >= 1023.95 || value <= -1023.95) && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << value << ' ' << kUnits[unit];
  return out << text.str();
}

}  // namespace zero3
