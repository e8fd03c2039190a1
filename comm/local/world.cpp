#include "local/world.h"

#include <utility>

#include <zero3/error.h>

namespace zero3::local {

void World::fail(Failure failure) {
  if (failure_.has_value()) return;
  failure_ = std::move(failure);
  changed.notify_all();
}

void World::abort(int rank, std::string_view reason) noexcept {
  const std::scoped_lock lock(mutex);
  try {
    fail({.message = concat("aborted by rank ", rank, ": ", reason), .culprit = rank});
  } catch (...) {
    // No memory for the reason: the others are released all the same, with less to read.
    fail({.message = "aborted", .culprit = rank});
  }
}

std::optional<Failure> World::failure_now() {
  const std::scoped_lock lock(mutex);
  return failure_;
}

}  // namespace zero3::local
