#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <zero3/layer.h>
#include <zero3/trainer/llama_config.h>

namespace zero3::test {

/// A Llama-family decoder in plain loops and double precision, written from the formulas alone.
/// Rotary embeddings without scaling.
class ReferenceLlama {
 public:
  using Values = std::vector<double>;

  explicit ReferenceLlama(trainer::LlamaConfig config) : config_(std::move(config)) {}

  /// By Hugging Face's names; row-major.
  std::map<std::string, Values> params;

  /// Σ over targets that are not −100 of −log softmax(logits)[target].
  [[nodiscard]] double loss(std::span<const std::int32_t> inputs,
                            std::span<const std::int32_t> targets, TokenShape tokens) const {
    const auto h = static_cast<std::size_t>(config_.hidden);
    Values x;
    const Values& table = params.at("model.embed_tokens.weight");
    for (const std::int32_t id : inputs) {
      const auto row = table.begin() + static_cast<std::ptrdiff_t>(id) * config_.hidden;
      x.insert(x.end(), row, row + config_.hidden);
    }
    for (std::int64_t i = 0; i < config_.layers; ++i) x = block(i, x, tokens);
    x = rms_norm(x, "model.norm.weight", h);
    const Values logits =
        linear(x, config_.tied ? "model.embed_tokens" : "lm_head", h, size(config_.vocab));
    double sum = 0;
    for (std::size_t r = 0; r < targets.size(); ++r) {
      if (targets[r] == -100) continue;
      const double* row = &logits[r * size(config_.vocab)];
      double total = 0;
      for (std::size_t c = 0; c < size(config_.vocab); ++c) total += std::exp(row[c]);
      sum += std::log(total) - row[targets[r]];
    }
    return sum;
  }

  /// One decoder layer on x [rows, hidden].
  [[nodiscard]] Values block(std::int64_t index, const Values& x, TokenShape tokens) const {
    const std::string p = "model.layers." + std::to_string(index) + ".";
    const auto h = size(config_.hidden), inner = size(config_.intermediate);
    const auto width = size(config_.query_width()), kv = size(config_.kv_width());
    const Values normed = rms_norm(x, p + "input_layernorm.weight", h);
    Values q = linear(normed, p + "self_attn.q_proj", h, width);
    Values k = linear(normed, p + "self_attn.k_proj", h, kv);
    const Values v = linear(normed, p + "self_attn.v_proj", h, kv);
    if (config_.qk_norm) {
      q = rms_norm(q, p + "self_attn.q_norm.weight", size(config_.head_dim));
      k = rms_norm(k, p + "self_attn.k_norm.weight", size(config_.head_dim));
    }
    rotate(q, size(config_.heads), size(tokens.seq));
    rotate(k, size(config_.kv_heads), size(tokens.seq));
    Values y = linear(attention(q, k, v, tokens), p + "self_attn.o_proj", width, h);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += x[i];
    const Values expanded = rms_norm(y, p + "post_attention_layernorm.weight", h);
    Values product = linear(expanded, p + "mlp.gate_proj", h, inner);
    const Values up = linear(expanded, p + "mlp.up_proj", h, inner);
    for (std::size_t i = 0; i < up.size(); ++i) {
      product[i] = product[i] / (1 + std::exp(-product[i])) * up[i];
    }
    const Values down = linear(product, p + "mlp.down_proj", inner, h);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += down[i];
    return y;
  }

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  [[nodiscard]] Values linear(const Values& x, const std::string& name, std::size_t in,
                              std::size_t out) const {
    const Values& w = params.at(name + ".weight");
    const auto bias = params.find(name + ".bias");
    Values y(x.size() / in * out);
    for (std::size_t r = 0; r < x.size() / in; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        double sum = bias == params.end() ? 0 : bias->second[o];
        for (std::size_t i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
        y[r * out + o] = sum;
      }
    }
    return y;
  }

  [[nodiscard]] Values rms_norm(const Values& x, const std::string& name, std::size_t width) const {
    const Values& weight = params.at(name);
    Values y(x.size());
    for (std::size_t begin = 0; begin < x.size(); begin += width) {
      double squares = 0;
      for (std::size_t i = 0; i < width; ++i) squares += x[begin + i] * x[begin + i];
      const double rstd =
          1 / std::sqrt(squares / static_cast<double>(width) + double{config_.rms_norm_eps});
      for (std::size_t i = 0; i < width; ++i) y[begin + i] = x[begin + i] * rstd * weight[i];
    }
    return y;
  }

  void rotate(Values& x, std::size_t heads, std::size_t seq) const {
    const std::size_t d = size(config_.head_dim), half = d / 2;
    for (std::size_t begin = 0; begin < x.size(); begin += d) {
      const auto position = static_cast<double>(begin / (heads * d) % seq);
      for (std::size_t i = 0; i < half; ++i) {
        const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(d);
        const double angle = position * std::pow(config_.rope.theta, exponent);
        const double a = x[begin + i], b = x[begin + i + half];
        x[begin + i] = a * std::cos(angle) - b * std::sin(angle);
        x[begin + i + half] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }

  [[nodiscard]] Values attention(const Values& q, const Values& k, const Values& v,
                                 TokenShape tokens) const {
    const std::size_t d = size(config_.head_dim), heads = size(config_.heads);
    const std::size_t kv_heads = size(config_.kv_heads), seq = size(tokens.seq);
    Values out(q.size(), 0.0);
    for (std::size_t row = 0; row < size(tokens.rows()); ++row) {
      const std::size_t first = row - row % seq;
      for (std::size_t head = 0; head < heads; ++head) {
        const double* query = &q[(row * heads + head) * d];
        const auto of_key = [&](const Values& x, std::size_t r) {
          return &x[(r * kv_heads + head / (heads / kv_heads)) * d];
        };
        Values weights;
        double total = 0;
        for (std::size_t r = first; r <= row; ++r) {
          double score = 0;
          for (std::size_t i = 0; i < d; ++i) score += query[i] * of_key(k, r)[i];
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
          total += weights.back();
        }
        for (std::size_t r = first; r <= row; ++r) {
          for (std::size_t i = 0; i < d; ++i) {
            out[(row * heads + head) * d + i] += weights[r - first] / total * of_key(v, r)[i];
          }
        }
      }
    }
    return out;
  }

  trainer::LlamaConfig config_;
};

/// Central difference of `value()` in `x`; error O(step²) and O(1e-16 / step).
template <class Function>
[[nodiscard]] double central_difference(double& x, const Function& value, double step = 1e-5) {
  const double kept = x;
  x = kept + step;
  const double above = value();
  x = kept - step;
  const double below = value();
  x = kept;
  return (above - below) / (2 * step);
}

}  // namespace zero3::test
