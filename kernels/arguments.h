#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include <zero3/device.h>
#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// Throws UsageError, in the name of `operation`, unless `view` has `count` elements of one of
/// `dtypes` in memory that the stream's kind of device reaches.
inline void check_operand(std::string_view operation, std::string_view operand,
                          const TensorView& view, std::int64_t count,
                          std::initializer_list<DType> dtypes, const Stream& stream) {
  ZERO3_CHECK(view.count() == count, operation, ": ", operand, " has ", view.count(),
              " elements where ", count, " are needed");
  if (count == 0) return;
  if (std::find(dtypes.begin(), dtypes.end(), view.dtype()) == dtypes.end()) {
    std::string wanted;
    for (const DType dtype : dtypes) {
      wanted += (wanted.empty() ? "" : " or ") + std::string(name_of(dtype));
    }
    throw UsageError(
        concat(operation, ": ", operand, " is ", view.dtype(), " where ", wanted, " is needed"));
  }
  const DeviceKind kind = view.device().kind();
  const DeviceKind wanted = stream.device().kind();
  ZERO3_CHECK(kind == wanted, operation, ": ", operand, " is in memory of device '", name_of(kind),
              "' and stream '", stream.name(), "' is of device '", name_of(wanted),
              "'; copy it there first");
}

/// The two views are the same elements.
[[nodiscard]] inline bool same_memory(const TensorView& a, const TensorView& b) {
  return a.data() == b.data() && a.bytes() == b.bytes() && a.dtype() == b.dtype();
}

/// The two views have a byte in common.
[[nodiscard]] inline bool overlap(const TensorView& a, const TensorView& b) {
  if (a.empty() || b.empty()) return false;
  const auto* first = static_cast<const std::byte*>(a.data());
  const auto* second = static_cast<const std::byte*>(b.data());
  return first < second + b.bytes().count() && second < first + a.bytes().count();
}

struct NamedView {
  std::string_view name;
  TensorView view;
};

/// Throws UsageError if `written` has memory in common with one of `others`.
inline void check_disjoint(std::string_view operation, const NamedView& written,
                           std::initializer_list<NamedView> others) {
  for (const NamedView& other : others) {
    ZERO3_CHECK(!overlap(written.view, other.view), operation, ": ", written.name, " and ",
                other.name, " share memory; give them separate buffers");
  }
}

/// The same, except that `written` may be exactly one of `others`.
inline void check_disjoint_or_same(std::string_view operation, const NamedView& written,
                                   std::initializer_list<NamedView> others) {
  for (const NamedView& other : others) {
    ZERO3_CHECK(!overlap(written.view, other.view) || same_memory(written.view, other.view),
                operation, ": ", written.name, " shares a part of the memory of ", other.name,
                "; give the same elements of one dtype, or separate buffers");
  }
}

/// What an operation throws for a CUDA stream in a build that has no CUDA backend.
[[nodiscard]] inline DeviceError built_without_cuda(std::string_view operation) {
  return DeviceError(concat(operation, " on a CUDA stream: zero3 was built without CUDA"));
}

}  // namespace zero3
