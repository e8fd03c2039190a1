#include <zero3/trainer/token_data.h>

#include <cmath>

#include <zero3/error.h>
#include <zero3/philox.h>

namespace zero3::trainer {
namespace {

/// Keeps these draws apart from those of weights and of other purposes with the same seed.
constexpr std::uint32_t kDataOrder = 0x64617461U;

}  // namespace

std::int64_t draw_sequence_start(const SequenceDraw& draw, std::int64_t places) {
  const PhiloxCounter counter = {
      static_cast<std::uint32_t>(draw.row), static_cast<std::uint32_t>(draw.micro_batch),
      static_cast<std::uint32_t>(draw.step), static_cast<std::uint32_t>(draw.step >> 32)};
  const PhiloxCounter words = philox(counter, philox_key(draw.seed, kDataOrder));
  const std::uint64_t word = std::uint64_t{words[1]} << 32 | words[0];
  // The remainder favours no place by more than places / 2^64.
  return static_cast<std::int64_t>(word % static_cast<std::uint64_t>(places));
}

TokenData::TokenData(const std::filesystem::path& path, const TokenDataOptions& options)
    : options_(options), file_(path) {
  ZERO3_CHECK(options.seq > 0, "a sequence needs at least one token, not ", options.seq);
  ZERO3_CHECK(options.val_fraction >= 0 && options.val_fraction < 1,
              "the share kept for validation must be in [0, 1), not ", options.val_fraction);
  const auto tail = static_cast<std::int64_t>(
      std::floor(static_cast<double>(file_.size()) * options.val_fraction));
  training_tokens_ = file_.size() - tail;
  const auto check_part = [&](const char* name, std::int64_t tokens, const char* advice) {
    ZERO3_CHECK(tokens >= options.seq + 1, "'", file_.path(), "' has ", file_.size(),
                " tokens, of which the ", name, " part gets ", tokens, ": sequences of ",
                options.seq, " need ", options.seq + 1,
                "; give a longer text, shorter sequences or a ", advice, " share for validation");
  };
  check_part("training", training_tokens_, "smaller");
  if (options.val_fraction > 0) check_part("validation", tail, "larger (or no)");
  file_.check_vocabulary(options.vocab);
}

void TokenData::training_batch(std::int64_t step, std::int64_t micro_batch,
                               std::span<std::int32_t> inputs,
                               std::span<std::int32_t> targets) const {
  const auto seq = static_cast<std::size_t>(options_.seq);
  for (std::size_t row = 0; row * seq < inputs.size(); ++row) {
    const std::int64_t start = draw_sequence_start({.seed = options_.seed,
                                                    .step = step,
                                                    .micro_batch = micro_batch,
                                                    .row = static_cast<std::int64_t>(row)},
                                                   training_tokens_ - options_.seq);
    read_sequence(start, inputs.subspan(row * seq, seq), targets.subspan(row * seq, seq));
  }
}

std::int64_t TokenData::validation_sequences() const {
  return validation_tokens() == 0 ? 0 : (validation_tokens() - 1) / options_.seq;
}

void TokenData::validation_sequence(std::int64_t index, std::span<std::int32_t> inputs,
                                    std::span<std::int32_t> targets) const {
  ZERO3_CHECK(index >= 0 && index < validation_sequences(), "validation sequence ", index, " of ",
              validation_sequences());
  read_sequence(training_tokens_ + index * options_.seq, inputs, targets);
}

void TokenData::read_sequence(std::int64_t begin, std::span<std::int32_t> inputs,
                              std::span<std::int32_t> targets) const {
  file_.read(begin, inputs);
  file_.read(begin + 1, targets);
}

}  // namespace zero3::trainer
