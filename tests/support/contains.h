#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace zero3::test {

/// EXPECT_TRUE(contains(error, {"rank 1", "all_gather"})): says what is missing, and in what.
[[nodiscard]] inline ::testing::AssertionResult contains(
    const std::string& text, const std::vector<std::string_view>& parts) {
  for (const std::string_view part : parts) {
    if (text.find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "no '" << part << "' in: " << text;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace zero3::test
