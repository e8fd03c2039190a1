#include "fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include <zero3/buffer.h>
#include <zero3/copy.h>
#include <zero3/error.h>
#include "init.h"

namespace zero3 {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// All ranks' elements, in rank order.
template <class T>
std::vector<T> all_gather_host(const std::vector<T>& own, DType dtype, Communicator& communicator,
                               Stream& stream) {
  const auto count = static_cast<std::int64_t>(own.size());
  std::vector<T> all(own.size() * static_cast<std::size_t>(communicator.world_size()));
  const Buffer part(Elements(count), dtype, MemoryTag::kWorkspace, stream);
  const Buffer full(Elements(count * communicator.world_size()), dtype, MemoryTag::kWorkspace,
                    stream);
  copy_from_host(part.view(), own.data(), stream);
  communicator.all_gather(full.view(), part.view(), "registration", stream);
  copy_to_host(all.data(), full.view(), stream);
  stream.synchronize();
  return all;
}

std::string difference(const std::vector<std::string>& here, const std::vector<std::string>& there,
                       int rank) {
  for (std::size_t i = 0; i < std::max(here.size(), there.size()); ++i) {
    const std::string mine = i < here.size() ? here[i] : "nothing more";
    const std::string theirs = i < there.size() ? there[i] : "nothing more";
    if (mine != theirs) {
      return concat("ranks registered different models: where rank 0 has ", mine, ", rank ", rank,
                    " has ", theirs, " (", here.size(), " and ", there.size(),
                    " entries in all); register the same groups in the same order and ",
                    "give the same options on every rank");
    }
  }
  return {};
}

std::string parameter_line(const ParamSpec& param, const EngineOptions& options) {
  const auto drawn = [&]() -> std::string {
    switch (param.init.kind) {
      case Init::Kind::kZeros:
        return "zeros";
      case Init::Kind::kOnes:
        return "ones";
      case Init::Kind::kNormal:
        return fmt::format("normal values of deviation {}", param.init.standard_deviation);
    }
    return {};
  };
  return fmt::format(
      "parameter '{}' of shape [{}]{}, optimizer group {}, gathered in {}, from {}\n", param.name,
      fmt::join(param.shape, ", "), param.trainable ? "" : ", frozen", param.optimizer_group,
      name_of(param.dtype.value_or(options.precision.param)), drawn());
}

}  // namespace

std::string registration_text(const std::deque<ParamGroup>& groups, const EngineOptions& options) {
  std::string text;
  const auto line = [&](std::string_view name, const auto& value) {
    text += fmt::format("{} {}\n", name, value);
  };
  line("parameters gathered in", name_of(options.precision.param));
  line("gradients reduced in", name_of(options.precision.reduce));
  line("optimizer", options.optimizer == OptimizerKind::kAdamW ? "AdamW" : "SGD");
  line("micro_steps", options.micro_steps);
  line("accumulation",
       options.accumulation == Accumulation::kKeepFull ? "kKeepFull" : "kReduceEachMicroStep");
  line("seed", options.seed);
  line("loss_scale", options.loss_scale);
  line("clip", options.clip);
  line("prefetch", options.prefetch);
  line("keep_gathered_below", options.keep_gathered_below.count());
  line("gathered_limit", options.gathered_limit.count());
  for (const OptimizerGroup& hyper : options.optimizer_groups) {
    text += fmt::format(
        "an optimizer group with betas {} and {}, eps {}, decay {}, rate factor {}\n", hyper.beta1,
        hyper.beta2, hyper.eps, hyper.weight_decay, hyper.learning_rate_factor);
  }
  for (const ParamGroup& group : groups) {
    text += fmt::format("group '{}' with uses {}\n", group.spec.name, group.spec.uses);
    for (const ParamSpec& param : group.spec.params) text += parameter_line(param, options);
  }
  return text;
}

void compare_registrations(const std::string& text, Communicator& communicator, Stream& stream) {
  if (communicator.world_size() == 1) return;
  const std::vector<std::uint64_t> own = {name_hash(text), text.size()};
  const std::vector<std::uint64_t> all = all_gather_host(own, DType::kU64, communicator, stream);
  std::uint64_t longest = 0;
  bool same = true;
  for (std::size_t rank = 0; rank < all.size() / 2; ++rank) {
    same = same && all[2 * rank] == all[0] && all[2 * rank + 1] == all[1];
    longest = std::max(longest, all[2 * rank + 1]);
  }
  if (same) return;
  std::vector<std::uint8_t> padded(longest, 0);
  std::copy(text.begin(), text.end(), padded.begin());
  const std::vector<std::uint8_t> texts = all_gather_host(padded, DType::kU8, communicator, stream);
  const auto text_of = [&](std::size_t rank) {
    const auto begin = texts.begin() + static_cast<std::ptrdiff_t>(rank * longest);
    return lines_of(std::string(begin, begin + static_cast<std::ptrdiff_t>(all[2 * rank + 1])));
  };
  for (std::size_t rank = 1; rank < all.size() / 2; ++rank) {
    const std::string found = difference(text_of(0), text_of(rank), static_cast<int>(rank));
    if (!found.empty()) throw UsageError(found);
  }
}

}  // namespace zero3
