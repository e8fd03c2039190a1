#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero3/half.h>
#include <zero3/philox.h>
#include <zero3/tokenwise_region.h>
#include "support/engine_ops.h"
#include "support/gated_mlp.h"

namespace zero3::test {

inline constexpr std::int64_t kGranule = 16;

inline float value_at(std::uint32_t tensor, std::int64_t i) {
  return static_cast<float>(philox({static_cast<std::uint32_t>(i), tensor}, {5, 6})[0] >> 8) *
             0x1p-23F -
         1.0F;
}

struct RegionSetting {
  TokenShape tokens;
  std::string tile = "none";
  int accumulate = 1;
  bool input_gradient = true;
  std::vector<int> frozen = {};
  /// Uses of the group; the others than the region's add what they find by hand.
  int uses = 1;
  DType dtype = DType::kF32;
  std::int64_t granule_rows = kGranule;
};

/// A gated MLP in a region on one rank, with memory for its tensors.
struct RegionModel {
  RegionModel(Device& device, Communicator& communicator, const RegionSetting& the_setting,
              int micro_steps)
      : setting(the_setting),
        engine(device, communicator,
               {.precision = {.param = setting.dtype},
                .optimizer = OptimizerKind::kSgd,
                .micro_steps = micro_steps}),
        mlp{.dtype = setting.dtype, .granule_rows = setting.granule_rows} {
    GroupSpec group = mlp.group("mlp", setting.uses);
    for (const int param : setting.frozen)
      group.params[static_cast<std::size_t>(param)].trainable = false;
    id = engine.add_group(std::move(group));
    region = std::make_unique<TokenwiseRegion>(
        engine, id, mlp.function(),
        TokenwiseOptions{.tokens = setting.tokens,
                         .tile = parse_tile_policy(setting.tile),
                         .hidden = mlp.width,
                         .workspace = [this](std::int64_t rows) { return mlp.workspace(rows); },
                         .granule_rows = setting.granule_rows});
    engine.build();
    region->build();
    for (Buffer* buffer : {&x, &y, &dy, &dx}) {
      *buffer = Buffer(Elements(setting.tokens.rows() * mlp.width), setting.dtype,
                       MemoryTag::kActivations, engine.compute());
    }
  }
  void fill(const TensorView& view, std::uint32_t tensor, std::int64_t first) {
    engine.compute().call("fill", [data = internal::native_data(view), n = view.count(),
                                   bf16 = view.dtype() == DType::kBF16, tensor, first] {
      for (std::int64_t i = 0; i < n; ++i) {
        const float value = value_at(tensor, first + i);
        if (bf16) {
          static_cast<BFloat16*>(data)[i] = BFloat16(value);
        } else {
          static_cast<float*>(data)[i] = value;
        }
      }
    });
  }
  [[nodiscard]] TensorView rows_of(const Buffer& buffer, TokenShape tokens) const {
    return buffer.view().slice(0, tokens.rows() * mlp.width);
  }
  /// Forward and backward of a micro-batch with other data for another `j`.
  void run(TokenShape tokens, std::int64_t j) {
    const TensorView in = rows_of(x, tokens), out = rows_of(y, tokens), d = rows_of(dy, tokens);
    fill(in, 1, j * 100003);
    fill(d, 2, j * 100003);
    region->forward(tokens, {{in}}, {{out}});
    const TensorView din = setting.input_gradient ? rows_of(dx, tokens) : TensorView();
    region->backward(tokens, {{in}}, {{d}}, {{din}});
  }

  RegionSetting setting;
  Engine engine;
  GatedMlp mlp;
  GroupId id;
  std::unique_ptr<TokenwiseRegion> region;
  Buffer x, y, dy, dx;
};

}  // namespace zero3::test
