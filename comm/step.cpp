#include "step.h"

#include "payload.h"

namespace zero3::collective {

void keep(const Step& step, int reader, int owner, const void* source) {
  const Range range = step.range(reader, owner);
  if (range.count == 0) return;
  const std::int64_t size = size_of(step.dtype);
  const std::byte* from = static_cast<const std::byte*>(source) + range.begin * size;
  std::byte* to = step.place(owner);
  if (step.wire != step.dtype) {
    narrow(to, step.wire, reinterpret_cast<const float*>(from), range.count);
  } else if (to != from) {
    copy_bytes(to, from, range.count * size);
  }
}

void run_in_place(const Step& step, int reader, std::span<const void* const> sources) {
  if (step.place) {
    for (std::size_t owner = 0; owner < sources.size(); ++owner) {
      keep(step, reader, static_cast<int>(owner), sources[owner]);
    }
  }
  if (!step.fold) return;
  const Range range = step.range(reader, reader);
  if (range.count == 0) return;
  std::vector<const void*> parts;
  for (const void* source : sources) {
    parts.push_back(static_cast<const std::byte*>(source) + range.begin * size_of(step.dtype));
  }
  step.fold(parts, 0, range.count);
}

}  // namespace zero3::collective
