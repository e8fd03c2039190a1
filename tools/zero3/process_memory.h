#pragma once

#include <zero3/units.h>

namespace zero3::program {

/// Most memory that this process has had resident (VmHWM); 0 where the system does not tell.
[[nodiscard]] Bytes peak_resident_memory();

}  // namespace zero3::program
