#pragma once

#include <cstdint>
#include <string>

#include <zero3/gemm.h>
#include <zero3/swiglu.h>
#include <zero3/zero3.h>

namespace zero3::test {

/// The function of docs/embedding.md: y = down · (silu(gate · x + bias) ⊙ (up · x)), whose `up` is
/// frozen.
struct GatedMlp {
  enum Param { kGate, kBias, kUp, kDown };

  std::int64_t width = 24, inner = 40;
  DType dtype = DType::kF32;
  int threads = 1;
  std::int64_t granule_rows = kDefaultGranuleRows;

  [[nodiscard]] GroupSpec group(const std::string& name, int uses = 1) const {
    return {
        .name = name,
        .params = {{.name = name + ".gate", .shape = {inner, width}, .init = Init::normal(0.3F)},
                   {.name = name + ".bias", .shape = {inner}, .init = Init::normal(0.2F)},
                   {.name = name + ".up",
                    .shape = {inner, width},
                    .init = Init::normal(0.3F),
                    .trainable = false},
                   {.name = name + ".down", .shape = {width, inner}, .init = Init::normal(0.3F)}},
        .uses = uses};
  }
  [[nodiscard]] TokenwiseFunction function() const {
    return {.forward = [m = *this](const TokenTile& tile,
                                   std::span<const TensorView> out) { m.forward(tile, out[0]); },
            .backward =
                [m = *this](const TokenTile& tile, std::span<const TensorView> d_out,
                            std::span<const TensorView> d_in, const Gradients& grads) {
                  m.backward(tile, d_out[0], d_in[0], grads);
                }};
  }
  [[nodiscard]] Bytes workspace(std::int64_t rows) const {
    return gemm_bytes() + tensor_bytes(rows) * 3;
  }

 private:
  /// What lives for one tile.
  struct Scratch {
    TensorView gemm, gate, up, product;
  };
  [[nodiscard]] Bytes gemm_bytes() const {
    const Bytes wide = Gemm::workspace_bytes(expand(granule_rows), dtype, threads, granule_rows);
    const Bytes narrow = Gemm::workspace_bytes(reduce(granule_rows), dtype, threads, granule_rows);
    return aligned(std::max(wide, narrow));
  }
  [[nodiscard]] Bytes tensor_bytes(std::int64_t rows) const {
    return aligned(bytes_of(Elements(rows * inner), dtype));
  }
  [[nodiscard]] LinearShape expand(std::int64_t rows) const { return {rows, width, inner}; }
  [[nodiscard]] LinearShape reduce(std::int64_t rows) const { return {rows, inner, width}; }
  [[nodiscard]] Scratch scratch(const TokenTile& tile) const {
    const std::int64_t begin = gemm_bytes().count(), each = tensor_bytes(tile.rows).count();
    const auto tensor = [&](std::int64_t i) {
      return tile.workspace.slice(begin + i * each, each).as(dtype).slice(0, tile.rows * inner);
    };
    return {tile.workspace.slice(0, begin), tensor(0), tensor(1), tensor(2)};
  }
  void expand(const TokenTile& tile, const Scratch& s) const {
    const TensorView x = tile.inputs[0];
    tile.gemm.forward(s.gate, x, tile.weights[kGate], tile.weights[kBias], expand(tile.rows),
                      s.gemm);
    tile.gemm.forward(s.up, x, tile.weights[kUp], TensorView(), expand(tile.rows), s.gemm);
  }
  void forward(const TokenTile& tile, TensorView y) const {
    const Scratch s = scratch(tile);
    expand(tile, s);
    swiglu_forward(s.product, s.gate, s.up, tile.stream);
    tile.gemm.forward(y, s.product, tile.weights[kDown], TensorView(), reduce(tile.rows), s.gemm);
  }
  void backward(const TokenTile& tile, TensorView dy, TensorView dx, const Gradients& grads) const {
    const Scratch s = scratch(tile);
    expand(tile, s);  // again: nothing but x was kept
    swiglu_forward(s.product, s.gate, s.up, tile.stream);
    if (const TensorView d_down = grads[kDown]; !d_down.empty())
      tile.gemm.backward_weight(d_down, dy, s.product, reduce(tile.rows), s.gemm);
    tile.gemm.backward_input(s.product, dy, tile.weights[kDown], reduce(tile.rows), Into::kReplace,
                             s.gemm);
    swiglu_backward(s.gate, s.up, TensorView(), s.product, s.gate, s.up, tile.stream);
    if (const TensorView d_gate = grads[kGate]; !d_gate.empty())
      tile.gemm.backward_weight(d_gate, s.gate, tile.inputs[0], expand(tile.rows), s.gemm);
    if (const TensorView d_bias = grads[kBias]; !d_bias.empty())
      tile.gemm.backward_bias(d_bias, s.gate, expand(tile.rows));
    if (dx.empty()) return;
    tile.gemm.backward_input(dx, s.gate, tile.weights[kGate], expand(tile.rows), Into::kReplace,
                             s.gemm);
    tile.gemm.backward_input(dx, s.up, tile.weights[kUp], expand(tile.rows), Into::kAccumulate,
                             s.gemm);
  }
};

}  // namespace zero3::test
