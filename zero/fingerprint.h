#pragma once

#include <deque>
#include <string>

#include <zero3/communicator.h>
#include <zero3/options.h>
#include "param_group.h"

namespace zero3 {

/// What ranks must agree on, a line per option and per parameter.
[[nodiscard]] std::string registration_text(const std::deque<ParamGroup>& groups,
                                            const EngineOptions& options);

/// Throws UsageError on every rank, naming the first line that differs and the ranks, unless all
/// ranks have the same text. Collective; blocks. Allocates a little workspace for its duration.
void compare_registrations(const std::string& text, Communicator& communicator, Stream& stream);

}  // namespace zero3
