#include "group.h"

#include <array>

namespace zero3::collective {

std::string Group::place(std::int64_t sequence) const {
  const std::string number = concat("collective #", sequence + 1);
  return name_.empty() ? number : concat(number, " of ", name_);
}

std::string Group::full_name(const Call& call) const {
  return concat(place(call.sequence), ", ", short_text(call.header));
}

Failure Group::mismatch(const Call& call, std::span<const int> others, const Header& other) const {
  const std::array own = {in_world(call.rank)};
  return {
      .message = concat(place(call.sequence), ": ",
                        difference(call.header, text_of_ranks(own), other, text_of_ranks(others))),
      .names_operation = true};
}

Failure Group::ended(int rank, std::int64_t issued, bool by_exception, std::span<const int> waiting,
                     const Call& call) const {
  return {
      .message = concat("rank ", in_world(rank),
                        by_exception ? " was ended by an exception after " : " has ended after ",
                        issued, " collectives, ", text_of_ranks(waiting),
                        waiting.size() == 1 ? " waits" : " wait", " for it in ", full_name(call)),
      .culprit = in_world(rank),
      .names_operation = true};
}

Failure Group::too_late(const Call& call, int level, std::span<const int> absent,
                        std::chrono::milliseconds timeout) const {
  return {.message = concat(full_name(call), ": ", text_of_ranks(absent),
                            level == 0 ? " absent after " : " not done after ", text_of(timeout)),
          .names_operation = true};
}

Failure Group::step_failed(const Call& call, const std::exception_ptr& error) const {
  const int culprit = in_world(call.rank);
  return {.message = concat(full_name(call), " failed on rank ", culprit, ": ", text_of(error)),
          .culprit = culprit,
          .names_operation = true};
}

Failure Group::stream_failed(const Call& call, const std::exception_ptr& error) const {
  const int culprit = in_world(call.rank);
  return {.message = concat(full_name(call), " cannot run, the stream of rank ", culprit,
                            " has failed: ", text_of(error)),
          .culprit = culprit,
          .names_operation = true};
}

std::string Group::description(const Call& call, int level, std::span<const int> absent) const {
  if (level == kTurn) return full_name(call) + ", issued after one on another stream";
  if (absent.empty()) return full_name(call);
  return concat(full_name(call), ", ", text_of_ranks(absent), level == 0 ? " absent" : " not done");
}

CommError Group::error(const Call& call, const Failure& failure) const {
  return CommError(failure.names_operation ? failure.message
                                           : concat(full_name(call), ": ", failure.message));
}

}  // namespace zero3::collective
