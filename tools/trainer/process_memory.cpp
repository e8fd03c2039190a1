#include <zero3/trainer/process_memory.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace zero3::trainer {

Bytes peak_resident_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    constexpr std::string_view kKey = "VmHWM:";
    if (line.starts_with(kKey)) return Bytes(std::stoll(line.substr(kKey.size())) * 1024);
  }
  return Bytes(0);
}

Bytes largest_peak_resident_memory(Engine& engine) {
  const std::vector<double> own = {static_cast<double>(peak_resident_memory().count())};
  const std::vector<double> all = engine.gather_values(own, "resident memory");
  return Bytes(static_cast<std::int64_t>(*std::max_element(all.begin(), all.end())));
}

}  // namespace zero3::trainer
