#pragma once

#include <memory>
#include <string_view>

namespace zero3 {

enum class LogLevel { kError, kWarn, kInfo, kDebug };

/// Lines on stderr of the form "zero3: [rank 2] text". A value, not a global: who logs is given
/// one. Thread-safe; lines are written whole.
class Log {
 public:
  explicit Log(int rank = 0, LogLevel level = LogLevel::kWarn);
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  ~Log();
  Log(Log&&) noexcept;
  Log& operator=(Log&&) noexcept;

  void write(LogLevel level, std::string_view text) const;
  void error(std::string_view text) const { write(LogLevel::kError, text); }
  void warn(std::string_view text) const { write(LogLevel::kWarn, text); }
  void info(std::string_view text) const { write(LogLevel::kInfo, text); }
  void debug(std::string_view text) const { write(LogLevel::kDebug, text); }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero3
