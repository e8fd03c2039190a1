#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <zero3/dtype.h>
#include <zero3/units.h>

namespace zero3 {

/// First values of a parameter. Normal values depend on (seed, parameter name, element index)
/// alone, so they are the same for every world size and device.
struct Init {
  enum class Kind : std::uint8_t { kZeros, kOnes, kNormal };
  Kind kind = Kind::kNormal;
  float standard_deviation = 0.02F;

  [[nodiscard]] static Init zeros() { return {Kind::kZeros, 0}; }
  [[nodiscard]] static Init ones() { return {Kind::kOnes, 0}; }
  [[nodiscard]] static Init normal(float standard_deviation) {
    return {Kind::kNormal, standard_deviation};
  }
};

/// One parameter as the trainer sees it.
struct ParamSpec {
  /// Unique within the engine.
  std::string name;
  /// Row-major; the number of elements may be 0.
  std::vector<std::int64_t> shape;
  Init init = {};
  /// A frozen parameter has no gradient and no moments, and step() leaves it alone.
  bool trainable = true;
  /// Index into EngineOptions::optimizer_groups.
  int optimizer_group = 0;
  /// Dtype of the gathered copy; nothing: the engine's Precision::param.
  std::optional<DType> dtype = std::nullopt;

  [[nodiscard]] Elements size() const;
};

/// What is gathered, and whose gradients are reduced, together: usually a layer.
struct GroupSpec {
  /// Unique within the engine; labels the group's collectives.
  std::string name;
  std::vector<ParamSpec> params;
  /// How often a micro-step asks for the group's gradients (2 for a table that is embedding and
  /// head). The reduction starts after the last; a micro-step with fewer uses is flushed at its
  /// end.
  int uses = 1;
};

/// Index of a group, in the order of registration.
struct GroupId {
  int index = -1;
  friend bool operator==(GroupId, GroupId) = default;
};

}  // namespace zero3
