#include "quantities.h"

#include <charconv>
#include <cmath>
#include <initializer_list>
#include <utility>

#include <zero3/error.h>

namespace zero3::program {
namespace {

struct Quantity {
  double value = 0;
  std::string_view unit;
};

Quantity split_unit(std::string_view text, std::string_view example) {
  Quantity quantity;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), quantity.value);
  ZERO3_CHECK(error == std::errc() && std::isfinite(quantity.value) && quantity.value >= 0, "'",
              text, "' is not ", example);
  quantity.unit = text.substr(static_cast<std::size_t>(end - text.data()));
  return quantity;
}

using Units = std::initializer_list<std::pair<std::string_view, double>>;

/// The value in the smallest unit, which must be whole and fit 63 bits.
std::int64_t scale(std::string_view text, std::string_view example, const Units& units) {
  const Quantity quantity = split_unit(text, example);
  for (const auto& [unit, factor] : units) {
    if (unit != quantity.unit) continue;
    const double scaled = quantity.value * factor;
    ZERO3_CHECK(scaled < 0x1p62, "'", text, "' is too large");
    ZERO3_CHECK(scaled == std::floor(scaled), "'", text, "' is not a whole number");
    return static_cast<std::int64_t>(scaled);
  }
  throw UsageError(
      concat("'", text, "' has the unknown unit '", quantity.unit, "'; write ", example));
}

}  // namespace

std::int64_t parse_size(std::string_view text) {
  constexpr double kKi = 1024;
  return scale(text, "a size such as 4096, 64K or 2GiB",
               {{"", 1},
                {"K", kKi},
                {"KiB", kKi},
                {"M", kKi * kKi},
                {"MiB", kKi * kKi},
                {"G", kKi * kKi * kKi},
                {"GiB", kKi * kKi * kKi},
                {"T", kKi * kKi * kKi * kKi},
                {"TiB", kKi * kKi * kKi * kKi}});
}

std::chrono::milliseconds parse_duration(std::string_view text) {
  return std::chrono::milliseconds(
      scale(text, "a duration such as 500ms, 30s or 5min",
            {{"", 1e3}, {"ms", 1}, {"s", 1e3}, {"min", 60e3}, {"h", 3600e3}}));
}

std::int64_t parse_count(std::string_view text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool plain = error == std::errc() && end == text.data() + text.size();
  if (!plain) value = parse_size(text);
  ZERO3_CHECK(value >= least, "'", text, "' is too small; the smallest is ", least);
  ZERO3_CHECK(value <= most, "'", text, "' is too large; the largest is ", most);
  return value;
}

double parse_number_in(std::string_view text, double least, double below) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  ZERO3_CHECK(error == std::errc() && end == text.data() + text.size() && std::isfinite(value), "'",
              text, "' is not a number");
  ZERO3_CHECK(value >= least, "'", text, "' is too small; the smallest is ", least);
  ZERO3_CHECK(value < below, "'", text, "' is too large; give less than ", below);
  return value;
}

std::string counted(std::int64_t count, std::string_view noun) {
  return concat(count, ' ', noun, count == 1 ? "" : "s");
}

}  // namespace zero3::program
