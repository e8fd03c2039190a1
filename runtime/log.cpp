#include <zero3/log.h>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <string>

#include <zero3/error.h>

namespace zero3 {

struct Log::State {
  spdlog::logger logger{"zero3", std::make_shared<spdlog::sinks::stderr_sink_mt>()};
};

Log::Log(int rank, LogLevel level) : state_(std::make_unique<State>()) {
  state_->logger.set_pattern(concat("zero3: [rank ", rank, "] %v"));
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::err, spdlog::level::warn,
                                                   spdlog::level::info, spdlog::level::debug};
  state_->logger.set_level(kLevels[static_cast<int>(level)]);
}

Log::~Log() = default;
Log::Log(Log&&) noexcept = default;
Log& Log::operator=(Log&&) noexcept = default;

void Log::write(LogLevel level, std::string_view text) const {
  switch (level) {
    case LogLevel::kError:
      return state_->logger.error("{}", text);
    case LogLevel::kWarn:
      return state_->logger.warn("{}", text);
    case LogLevel::kInfo:
      return state_->logger.info("{}", text);
    case LogLevel::kDebug:
      return state_->logger.debug("{}", text);
  }
}

}  // namespace zero3
