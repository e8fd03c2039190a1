#include <algorithm>
#include <cmath>
#include <numbers>

#include <zero3/error.h>
#include <zero3/rope.h>

namespace zero3 {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

void check(const RopeConfig& config, std::int64_t seq) {
  using Scaling = RopeConfig::Scaling;
  ZERO3_CHECK(config.head_dim > 0 && config.head_dim % 2 == 0, "rope: head_dim is ",
              config.head_dim, "; it has to be even and above 0");
  ZERO3_CHECK(config.theta > 1.0, "rope: theta is ", config.theta, "; it has to be above 1");
  ZERO3_CHECK(seq >= 0, "rope: a table for ", seq, " positions");
  if (config.scaling == Scaling::kNone) return;
  ZERO3_CHECK(config.factor > 0.0, "rope: factor is ", config.factor, "; it has to be above 0");
  if (config.scaling == Scaling::kLinear) return;
  ZERO3_CHECK(config.original_max_position > 0, "rope: original_max_position is ",
              config.original_max_position, "; llama3 and yarn scaling need it");
  if (config.scaling == Scaling::kLlama3) {
    ZERO3_CHECK(config.low_freq_factor > 0.0 && config.high_freq_factor > config.low_freq_factor,
                "rope: low_freq_factor ", config.low_freq_factor, " and high_freq_factor ",
                config.high_freq_factor,
                "; the first has to be above 0, the second above the first");
  } else {
    ZERO3_CHECK(config.beta_slow > 0.0 && config.beta_fast >= config.beta_slow, "rope: beta_fast ",
                config.beta_fast, " and beta_slow ", config.beta_slow,
                "; the second has to be above 0, the first not below it");
    ZERO3_CHECK(config.attention_factor >= 0.0, "rope: attention_factor is ",
                config.attention_factor, "; it has to be above 0, or 0 for the default");
  }
}

/// Llama 3.1: long waves are stretched by `factor`, short ones kept, those between interpolated.
double llama3_frequency(double frequency, const RopeConfig& config) {
  const double turns = static_cast<double>(config.original_max_position) * frequency / kTwoPi;
  if (turns < config.low_freq_factor) return frequency / config.factor;
  if (turns > config.high_freq_factor) return frequency;
  const double smooth =
      (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  return (1.0 - smooth) * frequency / config.factor + smooth * frequency;
}

/// YaRN (Peng et al. 2023): the pair that turns `turns` times over the pretrained length, as a real
/// number.
double yarn_pair(double turns, const RopeConfig& config) {
  const auto length = static_cast<double>(config.original_max_position);
  return static_cast<double>(config.head_dim) * std::log(length / (turns * kTwoPi)) /
         (2.0 * std::log(config.theta));
}

double yarn_frequency(double frequency, std::int64_t pair, const RopeConfig& config) {
  const double low = std::max(std::floor(yarn_pair(config.beta_fast, config)), 0.0);
  double high = std::min(std::ceil(yarn_pair(config.beta_slow, config)),
                         static_cast<double>(config.head_dim - 1));
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return frequency / config.factor * ramp + frequency * (1.0 - ramp);
}

double pair_frequency(std::int64_t pair, const RopeConfig& config) {
  const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(config.head_dim);
  const double frequency = std::pow(config.theta, exponent);
  switch (config.scaling) {
    case RopeConfig::Scaling::kNone:
      return frequency;
    case RopeConfig::Scaling::kLinear:
      return frequency / config.factor;
    case RopeConfig::Scaling::kLlama3:
      return llama3_frequency(frequency, config);
    case RopeConfig::Scaling::kYarn:
      return yarn_frequency(frequency, pair, config);
  }
  return frequency;
}

double amplitude(const RopeConfig& config) {
  if (config.scaling != RopeConfig::Scaling::kYarn) return 1.0;
  if (config.attention_factor > 0.0) return config.attention_factor;
  return config.factor <= 1.0 ? 1.0 : 0.1 * std::log(config.factor) + 1.0;
}

}  // namespace

RopeTable make_rope_table(const RopeConfig& config, std::int64_t seq) {
  check(config, seq);
  const std::int64_t half = config.head_dim / 2;
  const double scale = amplitude(config);
  const auto size = static_cast<std::size_t>(seq * half);
  RopeTable table{std::vector<float>(size), std::vector<float>(size)};
  for (std::int64_t pair = 0; pair < half; ++pair) {
    const double frequency = pair_frequency(pair, config);
    for (std::int64_t position = 0; position < seq; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      const auto at = static_cast<std::size_t>(position * half + pair);
      table.cos[at] = static_cast<float>(scale * std::cos(angle));
      table.sin[at] = static_cast<float>(scale * std::sin(angle));
    }
  }
  return table;
}

}  // namespace zero3
