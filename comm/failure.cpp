#include "failure.h"

#include <zero3/error.h>

namespace zero3::collective {

std::string waits_itself(int rank) {
  return concat(" (rank ", rank, " waits itself)");
}

std::string text_of(std::chrono::milliseconds duration) {
  if (duration.count() % 1000 == 0) return concat(duration.count() / 1000, " s");
  return concat(duration.count(), " ms");
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace zero3::collective
