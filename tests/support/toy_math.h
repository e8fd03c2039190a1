#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// The arithmetic of a small model on plain host memory: what the layers of toy_layers.h compute in
/// tasks, and the oracle of toy_oracle.h on unsharded buffers. Everything is fp32 in a fixed order.
namespace zero3::test::toy {

using In = std::span<const float>;
using Out = std::span<float>;

/// Sizes of the model: layers that map `width` to `width` through `hidden`, on `rows` tokens of a
/// vocabulary.
struct Shape {
  std::size_t width = 37, hidden = 61, vocab = 11, rows = 5, layers = 3;
  /// One table is both embedding and head.
  bool tied = true;
};

/// A layer's parameters: y = (1 + shift) ⊙ x + scale ⊙ (w2 · f(w1 · x + bias)) with
/// f(z) = z / (1 + |z|). Forward and backward read all of them but the bias.
struct LayerWeights {
  In w1, bias, w2, scale, shift;
};
/// `shift` is frozen and has none.
struct LayerGradients {
  Out w1, bias, w2, scale;
};
/// What a forward keeps for the backward: f's values and w2's products, row by row.
inline std::size_t saved_size(const Shape& s) {
  return s.rows * (s.hidden + s.width);
}

inline void layer_forward(const Shape& s, const LayerWeights& p, In x, Out y, Out saved) {
  for (std::size_t r = 0; r < x.size() / s.width; ++r) {
    const In in = x.subspan(r * s.width, s.width);
    const Out f = saved.subspan(r * (s.hidden + s.width), s.hidden);
    const Out product = saved.subspan(r * (s.hidden + s.width) + s.hidden, s.width);
    for (std::size_t h = 0; h < s.hidden; ++h) {
      float z = p.bias[h];
      for (std::size_t i = 0; i < s.width; ++i) z += p.w1[h * s.width + i] * in[i];
      f[h] = z / (1.0F + std::abs(z));
    }
    for (std::size_t o = 0; o < s.width; ++o) {
      float sum = 0;
      for (std::size_t h = 0; h < s.hidden; ++h) sum += p.w2[o * s.hidden + h] * f[h];
      product[o] = sum;
      if (!y.empty()) y[r * s.width + o] = (1.0F + p.shift[o]) * in[o] + p.scale[o] * sum;
    }
  }
}

/// `d` is the gradient of y and becomes that of x; adds to `g`.
inline void layer_backward(const Shape& s, const LayerWeights& p, const LayerGradients& g, In x,
                           In saved, Out d) {
  std::vector<float> d_product(s.width), d_z(s.hidden);
  for (std::size_t r = 0; r < x.size() / s.width; ++r) {
    const In in = x.subspan(r * s.width, s.width);
    const In f = saved.subspan(r * (s.hidden + s.width), s.hidden);
    const In product = saved.subspan(r * (s.hidden + s.width) + s.hidden, s.width);
    const Out out = d.subspan(r * s.width, s.width);
    for (std::size_t o = 0; o < s.width; ++o) {
      d_product[o] = p.scale[o] * out[o];
      g.scale[o] += out[o] * product[o];
      for (std::size_t h = 0; h < s.hidden; ++h) g.w2[o * s.hidden + h] += d_product[o] * f[h];
    }
    for (std::size_t h = 0; h < s.hidden; ++h) {
      float sum = 0;
      for (std::size_t o = 0; o < s.width; ++o) sum += p.w2[o * s.hidden + h] * d_product[o];
      const float slope = 1.0F - std::abs(f[h]);
      d_z[h] = sum * slope * slope;
      g.bias[h] += d_z[h];
      for (std::size_t i = 0; i < s.width; ++i) g.w1[h * s.width + i] += d_z[h] * in[i];
    }
    for (std::size_t i = 0; i < s.width; ++i) {
      out[i] *= 1.0F + p.shift[i];
      for (std::size_t h = 0; h < s.hidden; ++h) out[i] += p.w1[h * s.width + i] * d_z[h];
    }
  }
}

inline void embed(const Shape& s, In table, std::span<const std::int32_t> tokens, Out x) {
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    const auto row = table.subspan(static_cast<std::size_t>(tokens[r]) * s.width, s.width);
    std::copy(row.begin(), row.end(), x.begin() + static_cast<std::ptrdiff_t>(r * s.width));
  }
}

inline void embed_backward(const Shape& s, Out d_table, std::span<const std::int32_t> tokens,
                           In d) {
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    for (std::size_t i = 0; i < s.width; ++i)
      d_table[static_cast<std::size_t>(tokens[r]) * s.width + i] += d[r * s.width + i];
  }
}

/// Half of the squared error of table · y against `targets` [rows, vocab], summed in double. `d`
/// receives scale · the gradient of y; adds scale · the table's to `d_table`, if it has one.
inline double head(const Shape& s, In table, In y, In targets, float scale, Out d, Out d_table) {
  double loss = 0;
  for (std::size_t r = 0; r < y.size() / s.width; ++r) {
    const In in = y.subspan(r * s.width, s.width);
    std::vector<float> d_in(s.width, 0.0F);
    for (std::size_t v = 0; v < s.vocab; ++v) {
      float score = 0;
      for (std::size_t i = 0; i < s.width; ++i) score += table[v * s.width + i] * in[i];
      const float error = score - targets[r * s.vocab + v];
      loss += 0.5 * static_cast<double>(error) * static_cast<double>(error);
      for (std::size_t i = 0; i < s.width; ++i) {
        d_in[i] += scale * error * table[v * s.width + i];
        if (!d_table.empty()) d_table[v * s.width + i] += scale * error * in[i];
      }
    }
    if (!d.empty())
      std::copy(d_in.begin(), d_in.end(), d.begin() + static_cast<std::ptrdiff_t>(r * s.width));
  }
  return loss;
}

/// Micro-batch `j` of a step: tokens, and targets in [-1, 1).
struct Batch {
  Batch(const Shape& s, std::int64_t step, std::int64_t j)
      : tokens(s.rows), targets(s.rows * s.vocab) {
    auto state = static_cast<std::uint32_t>(step * 1009 + j * 97 + 12345);
    const auto next = [&state] { return (state = state * 1664525U + 1013904223U) >> 8; };
    for (std::int32_t& token : tokens)
      token = static_cast<std::int32_t>(next() % static_cast<std::uint32_t>(s.vocab));
    for (float& target : targets) target = static_cast<float>(next()) * 0x1p-23F - 1.0F;
  }
  std::vector<std::int32_t> tokens;
  std::vector<float> targets;
};

}  // namespace zero3::test::toy
