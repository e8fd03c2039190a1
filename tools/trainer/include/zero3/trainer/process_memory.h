#pragma once

#include <zero3/engine.h>
#include <zero3/units.h>

namespace zero3::trainer {

/// Most memory that this process has had resident (VmHWM); 0 where the system does not tell.
[[nodiscard]] Bytes peak_resident_memory();
/// That of the rank with the most. Collective.
[[nodiscard]] Bytes largest_peak_resident_memory(Engine& engine);

}  // namespace zero3::trainer
