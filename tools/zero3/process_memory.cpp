#include "process_memory.h"

#include <fstream>
#include <string>

namespace zero3::program {

Bytes peak_resident_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    constexpr std::string_view kKey = "VmHWM:";
    if (line.starts_with(kKey)) return Bytes(std::stoll(line.substr(kKey.size())) * 1024);
  }
  return Bytes(0);
}

}  // namespace zero3::program
