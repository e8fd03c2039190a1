#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace zero3 {

/// Base of everything zero3 throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller broke a contract, or gave input that cannot be used: fix the call or the input.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// Ranks disagree, or a rank failed, stalled or left. Names the rank, the operation and the group.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A device cannot do what was asked of it.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// A memory resource is exhausted. Names the tag, what was asked, what is in use and the limit.
class OutOfMemoryError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// A file or another part of the operating system failed. Names the path.
class IoError : public Error {
 public:
  using Error::Error;
};

/// The parts, streamed one after another.
template <class... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace zero3

/// Throws UsageError with the concatenated parts unless `condition` holds. Say what is wrong, with
/// the values, and what to change.
#define ZERO3_CHECK(condition, ...) \
  ((condition) ? static_cast<void>(0) : throw ::zero3::UsageError(::zero3::concat(__VA_ARGS__)))
