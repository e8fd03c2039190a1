#pragma once

#include <string>
#include <utility>

namespace zero3::test {

/// The message of the `Error` that `call` throws, or "nothing was thrown".
template <class Error, class Call>
[[nodiscard]] std::string thrown(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace zero3::test
