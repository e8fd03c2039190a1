// "cpu:sim", whose memory the host cannot touch, gives the bits of "cpu".
#include <gtest/gtest.h>

#include "support/contains.h"
#include "support/toy_model.h"

namespace zero3::test {
namespace {

using toy::run_toy;
using toy::RunOptions;

TEST(SimulatedDevice, TrainsToTheBitsOfTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    RunOptions options;
    options.engine = {
        .precision = {.param = dtype, .reduce = dtype}, .clip = 0.05, .micro_steps = 2};
    for (const int ranks : {1, 2, 3}) {
      EXPECT_EQ(run_toy(ranks, options, {.kind = DeviceKind::kCpuSim}), run_toy(ranks, options))
          << ranks << " ranks in " << dtype;
    }
  }
}

TEST(SimulatedDevice, GatheredViewsAreNotForTheHost) {
  run_ranks(1,
            [](Rank& rank) {
              Engine engine(*rank.device, *rank.communicator, {});
              const GroupId id = engine.add_group(group_of("w", {10}));
              engine.build();
              const Gathered full = engine.gather(id);
              EXPECT_TRUE(contains(
                  message_of<UsageError>([&] { static_cast<void>(full[0].host_span<float>()); }),
                  {"cpu:sim", "copy_to_host"}));
            },
            {.kind = DeviceKind::kCpuSim});
}

}  // namespace
}  // namespace zero3::test
