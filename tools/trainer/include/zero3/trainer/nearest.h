#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zero3::trainer {

/// The candidate with the least edit distance (Levenshtein 1966) from `word`, the first of equals;
/// empty if there are none.
[[nodiscard]] std::string nearest(std::string_view word,
                                  const std::vector<std::string>& candidates);

}  // namespace zero3::trainer
