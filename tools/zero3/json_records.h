#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include <zero3/trainer/train_loop.h>

namespace zero3::program {

/// Keys stay in the order in which they were set. Numbers are written with the fewest digits that
/// read back as the same.
using Json = nlohmann::ordered_json;

[[nodiscard]] Json to_json(const MemoryByTag& bytes);
[[nodiscard]] Json to_json(const CommCounters& counters);
[[nodiscard]] Json to_json(const trainer::StepRecord& record);
[[nodiscard]] Json to_json(const trainer::DoneRecord& record);

/// For times and rates, whose further digits are noise.
[[nodiscard]] double one_decimal(double value);
[[nodiscard]] double two_decimals(double value);
[[nodiscard]] std::int64_t mebibytes(Bytes bytes);

}  // namespace zero3::program
