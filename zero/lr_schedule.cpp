#include <zero3/lr_schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <zero3/error.h>

namespace zero3 {

double LrSchedule::at(std::int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (kind == Kind::kConstant) return peak;
  const auto span = static_cast<double>(std::max<std::int64_t>(1, steps - 1 - warmup));
  const double done = std::clamp(static_cast<double>(step - warmup) / span, 0.0, 1.0);
  const double left =
      kind == Kind::kLinear ? 1.0 - done : 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  return minimum + (peak - minimum) * left;
}

LrSchedule::Kind parse_lr_schedule(std::string_view name) {
  if (name == "constant") return LrSchedule::Kind::kConstant;
  if (name == "linear") return LrSchedule::Kind::kLinear;
  if (name == "cosine") return LrSchedule::Kind::kCosine;
  throw UsageError(concat("unknown schedule '", name, "'; choose one of constant, linear, cosine"));
}

}  // namespace zero3
