#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <zero3/dtype.h>
#include <zero3/internal/cpu_stream.h>

namespace zero3::collective {

struct Call;

/// Elements.
struct Range {
  std::int64_t begin = 0, count = 0;
};

/// What one rank does once all ranks have got as far: it reads a range of every rank's memory,
/// where that is or as messages, and either keeps each range or folds them into one.
struct Step {
  std::string name;
  std::vector<internal::Output> outputs = {};
  /// Of the memory that is read.
  DType dtype = DType::kU8;
  /// What elements are rounded to, and travel as.
  DType wire = DType::kU8;
  /// What `reader` reads of `owner`'s memory: the same on every rank, so that an owner who has to
  /// send it knows. Where elements are kept rounded, the same for every reader.
  std::function<Range(int reader, int owner)> range = nullptr;
  /// Keeping: where the elements of `owner` go, as `wire`.
  std::function<std::byte*(int owner)> place = nullptr;
  /// Folding: elements [begin, begin + count) of this rank's range; parts[r] points at the first
  /// of them of rank r, as `dtype`.
  std::function<void(std::span<const void* const> parts, std::int64_t begin, std::int64_t count)>
      fold = nullptr;
  /// After that.
  std::function<void(const Call& own)> finish = nullptr;
};

/// Keeps what `reader` reads of `owner`, whose memory is at `source`.
void keep(const Step& step, int reader, int owner, const void* source);
/// The step of rank `reader`; sources[r] is where it finds rank r's memory.
void run_in_place(const Step& step, int reader, std::span<const void* const> sources);

}  // namespace zero3::collective
