#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include <zero3/trainer/token_file.h>

namespace zero3::trainer {

/// A sequence starts at one of this many places.
struct SequenceDraw {
  std::uint64_t seed = 0;
  /// Of the run, from 0.
  std::int64_t step = 0;
  /// j = micro_step · N + rank: the same micro-batch for every N that has the same product.
  std::int64_t micro_batch = 0;
  /// Of the sequence within the micro-batch.
  std::int64_t row = 0;
};
/// A place in [0, places), by philox: depends on its arguments alone.
[[nodiscard]] std::int64_t draw_sequence_start(const SequenceDraw& draw, std::int64_t places);

struct TokenDataOptions {
  /// Share of the tokens, at the end, that is kept for validation; 0: none.
  double val_fraction = 0.05;
  /// Tokens of a sequence.
  std::int64_t seq = 0;
  std::int64_t vocab = 0;
  std::uint64_t seed = 0;
};

/// Token ids split into a training part and a validation tail. A sequence is `seq` tokens and, as
/// its targets, those one place further on. Everything that it hands out depends on the file and
/// the options alone. May be used by several threads.
class TokenData {
 public:
  /// Throws what TokenFile throws, and UsageError with the numbers when a part is shorter than seq
  /// + 1 tokens, or a token is not in the vocabulary.
  TokenData(const std::filesystem::path& path, const TokenDataOptions& options);

  [[nodiscard]] const TokenDataOptions& options() const { return options_; }
  [[nodiscard]] std::int64_t training_tokens() const { return training_tokens_; }
  [[nodiscard]] std::int64_t validation_tokens() const { return file_.size() - training_tokens_; }

  /// Sequences of a training micro-batch, as many as fit into `inputs`, at drawn places. `inputs`
  /// and `targets` have equal sizes, multiples of seq.
  void training_batch(std::int64_t step, std::int64_t micro_batch, std::span<std::int32_t> inputs,
                      std::span<std::int32_t> targets) const;
  /// Whole sequences in the validation tail; each token is a target at most once.
  [[nodiscard]] std::int64_t validation_sequences() const;
  /// Validation sequence `index`: the index-th window of the tail.
  void validation_sequence(std::int64_t index, std::span<std::int32_t> inputs,
                           std::span<std::int32_t> targets) const;

 private:
  void read_sequence(std::int64_t begin, std::span<std::int32_t> inputs,
                     std::span<std::int32_t> targets) const;

  TokenDataOptions options_;
  TokenFile file_;
  std::int64_t training_tokens_ = 0;
};

}  // namespace zero3::trainer
