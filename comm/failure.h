#pragma once

#include <chrono>
#include <exception>
#include <string>

/// What went wrong between ranks, in words that every backend uses.
namespace zero3::collective {

/// Why nothing works any more.
struct Failure {
  std::string message;
  /// The rank whose own exception is the cause; -1: it lies between ranks.
  int culprit = -1;
  /// The message names the operation; others are thrown behind the name of the one that was hit.
  bool names_operation = false;
};

/// Where one rank stands still, those that wait for it are waited for by others, and all run out of
/// time together; who does names only ranks that do not wait themselves. Where all of them do, they
/// have this long to run out of time as well, and to say for whom.
inline constexpr std::chrono::milliseconds kTimeToSpeak{400};
/// Of a rank that is named all the same.
[[nodiscard]] std::string waits_itself(int rank);

/// "30 s", "250 ms".
[[nodiscard]] std::string text_of(std::chrono::milliseconds duration);
/// "rank 1", "ranks 0, 2"; `ranks` is not empty.
template <class Ranks>
[[nodiscard]] std::string text_of_ranks(const Ranks& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const char* separator = "";
  for (const int rank : ranks) {
    text += separator + std::to_string(rank);
    separator = ", ";
  }
  return text;
}
/// What a caught exception says.
[[nodiscard]] std::string text_of(const std::exception_ptr& error);

}  // namespace zero3::collective
