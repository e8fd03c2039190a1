#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace zero3 {

/// What ran when: spans by rank and stream, written as Chrome trace JSON (chrome://tracing,
/// Perfetto) with one process per rank and one row per stream. Thread-safe.
class Trace {
 public:
  struct Span {
    int rank;
    std::string row;
    std::string name;
    std::int64_t begin_ns, end_ns;
    /// Tells streams of one name apart.
    std::uint64_t stream_id = 0;
  };

  /// Nanoseconds of a monotonic clock, the one of all spans.
  [[nodiscard]] static std::int64_t now_ns();
  void add(Span span);
  /// A copy of all spans so far, in the order of their ends.
  [[nodiscard]] std::vector<Span> spans() const;
  /// Throws IoError that names the path.
  void write_json(const std::filesystem::path& path) const;

 private:
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
};

}  // namespace zero3
