#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <zero3/philox.h>
#include "support/spawn.h"
#include "support/temp_dir.h"

namespace zero3::test {

/// Runs the built program.
inline Ended zero3_program(const std::vector<std::string>& arguments,
                           const SpawnOptions& options = {}) {
  return spawn(ZERO3_PROGRAM, arguments, options);
}

/// Random bytes in a file.
inline std::string write_text(const TempDir& dir, std::uint32_t bytes,
                              const std::string& name = "text.txt") {
  std::string text;
  for (std::uint32_t i = 0; i < bytes; ++i) text += static_cast<char>(philox({i}, {3, 4})[0]);
  return dir.write(name, text).string();
}

using Json = nlohmann::ordered_json;

/// What a training printed.
struct TrainOutput {
  std::vector<Json> steps;
  Json done;
  std::vector<std::string> lines;

  /// The records without what time alone decides.
  [[nodiscard]] std::vector<Json> timeless() const {
    std::vector<Json> records = steps;
    for (Json& record : records) {
      record.erase("tokens_per_s");
      record.erase("step_ms");
    }
    return records;
  }
};

inline TrainOutput parse_training(const Ended& ended) {
  TrainOutput output;
  EXPECT_EQ(ended.status, 0) << ended.err;
  output.lines = ended.out_lines();
  for (const std::string& line : output.lines) output.steps.push_back(Json::parse(line));
  if (output.steps.empty()) return output;
  output.done = output.steps.back();
  output.steps.pop_back();
  return output;
}

/// A short training of `tiny`: these flags and `more`.
inline TrainOutput train_tiny(const std::string& data, const std::vector<std::string>& more,
                              const SpawnOptions& options = {}) {
  std::vector<std::string> arguments = {
      "train", "--data",    data, "--steps",      "3", "--batch",       "2",  "--seq",
      "33",    "--threads", "1",  "--eval-every", "2", "--eval-tokens", "330"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return parse_training(zero3_program(arguments, options));
}

inline std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

}  // namespace zero3::test
