#include "header.h"

#include <zero3/error.h>

namespace zero3::collective {
namespace {

bool moves_payload(const Header& header) {
  return header.operation != name_of(CollectiveOp::kBarrier) && header.operation != "split";
}

}  // namespace

std::string short_text(const Header& header) {
  std::string text{header.operation};
  if (!header.label.empty()) text += " of '" + header.label + "'";
  if (moves_payload(header)) text += concat(" (", header.bytes.count(), " bytes)");
  return text;
}

namespace {

/// With what the short text leaves out, for calls that differ in nothing else.
std::string long_text(const Header& header) {
  if (!moves_payload(header)) return short_text(header);
  std::string text = short_text(header);
  text.pop_back();
  text += concat(", ", header.dtype);
  if (header.operation == name_of(CollectiveOp::kAllGather)) {
    text += concat(" from shards of ", header.source_dtype);
  } else if (header.operation == name_of(CollectiveOp::kReduceScatter)) {
    text += concat(", wire ", header.source_dtype,
                   header.into == Into::kReplace ? ", replacing" : ", accumulating");
  } else if (header.operation == name_of(CollectiveOp::kBroadcast)) {
    text += concat(", root ", header.root);
  }
  return text + ")";
}

}  // namespace

std::string difference(const Header& a, std::string_view a_ranks, const Header& b,
                       std::string_view b_ranks) {
  const auto text = short_text(a) == short_text(b) ? long_text : short_text;
  return concat(a_ranks, " calls ", text(a), ", ", b_ranks, ' ', text(b),
                "; every rank must issue the same collectives in the same order");
}

}  // namespace zero3::collective
