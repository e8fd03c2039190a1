// What tiles alone cost: two trainers of one process take steps in turn, one with the tiles of
// `auto`, one with a single tile, so that both meet the same moments of a machine that is not
// quiet.
//   tile_cost [PAIRS=20] [TOKENS=4096]
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include <zero3/trainer/rank_trainer.h>
#include <zero3/zero3.h>

using namespace zero3;

namespace {

constexpr int kWarmupPairs = 2;

trainer::TrainOptions options(TilePolicy::Kind tile, std::int64_t tokens) {
  trainer::TrainOptions options;
  options.micro_batch = {.batch = 1, .seq = tokens};
  options.checkpoints.mode = CheckpointMode::kRecompute;
  options.tile = {.kind = tile};
  return options;
}

double seconds_of_step(trainer::RankTrainer& trainer) {
  const auto fill = [](std::int64_t, std::span<std::int32_t> inputs,
                       std::span<std::int32_t> targets) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = static_cast<std::int32_t>(i * 7919 % 50000);
      targets[i] = static_cast<std::int32_t>((i + 1) * 7919 % 50000);
    }
  };
  const auto begin = std::chrono::steady_clock::now();
  trainer.step(1e-3, fill);
  trainer.engine().synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 20;
  const std::int64_t tokens = argc > 2 ? std::atoll(argv[2]) : 4096;
  const std::unique_ptr<Device> device = make_device({});
  const std::unique_ptr<Communicator> self = make_self_communicator();
  const trainer::LlamaConfig config = trainer::resolve_config("30m");
  trainer::RankTrainer tiled(*device, *self, config, options(TilePolicy::Kind::kAuto, tokens));
  trainer::RankTrainer whole(*device, *self, config, options(TilePolicy::Kind::kNone, tokens));
  tiled.build();
  whole.build();
  std::vector<double> ratios;
  for (int pair = -kWarmupPairs; pair < pairs; ++pair) {
    const bool tiled_first = pair % 2 == 0;
    std::array<double, 2> seconds = {};
    for (const bool first : {true, false})
      seconds[first == tiled_first ? 0 : 1] = seconds_of_step(first == tiled_first ? tiled : whole);
    if (pair < 0) continue;
    ratios.push_back(seconds[0] / seconds[1]);
    std::printf("%lld tiles: %.3f s, one: %.3f s, ratio %.3f\n",
                static_cast<long long>(tiled.tiles()), seconds[0], seconds[1], ratios.back());
    std::fflush(stdout);
  }
  if (ratios.size() < 2) return 0;
  const double count = static_cast<double>(ratios.size());
  const double mean = std::accumulate(ratios.begin(), ratios.end(), 0.0) / count;
  double squares = 0;
  for (const double ratio : ratios) squares += (ratio - mean) * (ratio - mean);
  std::sort(ratios.begin(), ratios.end());
  std::printf("median %.3f, mean %.3f, standard error %.3f\n", ratios[ratios.size() / 2], mean,
              std::sqrt(squares / (count * (count - 1))));
}
