#include <zero3/trace.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <zero3/error.h>

namespace zero3 {
namespace {

std::string json_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string name_event(std::string_view kind, int rank, int row, const std::string& name) {
  return fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}}}})", kind,
                     rank, row, json_string(name));
}

std::string span_event(const Trace::Span& span, int row, std::int64_t start_ns) {
  return fmt::format(R"({{"ph":"X","name":{},"pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}}})",
                     json_string(span.name), span.rank, row,
                     static_cast<double>(span.begin_ns - start_ns) * 1e-3,
                     static_cast<double>(span.end_ns - span.begin_ns) * 1e-3);
}

}  // namespace

std::int64_t Trace::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Trace::add(Span span) {
  const std::scoped_lock lock(mutex_);
  spans_.push_back(std::move(span));
}

std::vector<Trace::Span> Trace::spans() const {
  const std::scoped_lock lock(mutex_);
  return spans_;
}

void Trace::write_json(const std::filesystem::path& path) const {
  const std::vector<Span> all = spans();
  std::int64_t start_ns = INT64_MAX;
  for (const Span& span : all) start_ns = std::min(start_ns, span.begin_ns);

  errno = 0;
  std::ofstream out(path);
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* separator = "\n";
  const auto put = [&](const std::string& event) {
    out << std::exchange(separator, ",\n") << event;
  };
  std::set<int> ranks;
  std::map<std::tuple<int, std::string, std::uint64_t>, int> rows;
  for (const Span& span : all) {
    if (ranks.insert(span.rank).second) {
      put(name_event("process_name", span.rank, 0, fmt::format("rank {}", span.rank)));
    }
    const auto [row, fresh] = rows.emplace(std::tuple{span.rank, span.row, span.stream_id},
                                           static_cast<int>(rows.size()) + 1);
    if (fresh) put(name_event("thread_name", span.rank, row->second, span.row));
    put(span_event(span, row->second, start_ns));
  }
  out << "\n]}\n";
  out.flush();
  if (!out) {
    throw IoError(concat("trace: cannot write '", path.string(), "': ", std::strerror(errno),
                         "; choose a writable path"));
  }
}

}  // namespace zero3
