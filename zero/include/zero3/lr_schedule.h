#pragma once

#include <cstdint>
#include <string_view>

namespace zero3 {

/// Learning rate by step: linear from 0 over `warmup` steps, then constant, or linearly or along
/// half a cosine from `peak` to `minimum` at the last step.
struct LrSchedule {
  enum class Kind : std::uint8_t { kConstant, kLinear, kCosine };
  Kind kind = Kind::kConstant;
  double peak = 1e-3;
  double minimum = 0;
  std::int64_t warmup = 0;
  std::int64_t steps = 1;

  /// For step 0, 1, …; step i < warmup has peak · (i + 1) / warmup.
  [[nodiscard]] double at(std::int64_t step) const;
};

/// Throws UsageError that lists the names constant, linear, cosine.
[[nodiscard]] LrSchedule::Kind parse_lr_schedule(std::string_view name);

}  // namespace zero3
