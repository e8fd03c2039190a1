#pragma once

#include <string>
#include <string_view>

#include <zero3/communicator.h>

namespace zero3::collective {

/// What the ranks must agree on before payload moves.
struct Header {
  std::string_view operation;
  std::string label = {};
  Bytes bytes = {};
  DType dtype = DType::kU8;
  /// Of what is read (all_gather), or of what travels (reduce_scatter).
  DType source_dtype = DType::kU8;
  Into into = Into::kReplace;
  int root = 0;

  friend bool operator==(const Header&, const Header&) = default;
};

/// "all_gather of 'block.2' (2048 bytes)"
[[nodiscard]] std::string short_text(const Header& header);
/// What both ranks call, with the details of the headers where nothing else differs.
[[nodiscard]] std::string difference(const Header& a, std::string_view a_ranks, const Header& b,
                                     std::string_view b_ranks);

}  // namespace zero3::collective
