// Gathers and reductions run beside the compute stream.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <zero3/faulty_communicator.h>
#include <zero3/trace.h>
#include "support/engine_ops.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

/// Two ranks run a forward and a backward of four layers whose computing takes `work`, with
/// collectives that take `communication`.
void train(Trace& trace, std::chrono::milliseconds work, std::chrono::milliseconds communication,
           std::optional<std::uint64_t> seed) {
  run_ranks(2,
            [&](Rank& rank) {
              FaultyCommunicator slow(
                  std::move(rank.communicator),
                  {{.kind = Fault::Kind::kDelay, .at = Fault::kEvery, .delay = communication}});
              Engine engine(*rank.device, slow, {});
              std::vector<GroupId> groups;
              groups.reserve(4);
              for (int i = 0; i < 4; ++i)
                groups.push_back(engine.add_group(group_of("g" + std::to_string(i), {4000})));
              engine.build();
              const auto compute = [&](const std::string& name) {
                engine.compute().call(name, [work] { std::this_thread::sleep_for(work); });
              };
              {
                const MicroStep scope = engine.begin_micro_step();
                for (std::size_t i = 0; i < 4; ++i) {
                  const Gathered full = engine.gather(groups[i]);
                  compute("forward " + std::to_string(i));
                }
                for (std::size_t i = 4; i-- > 0;) {
                  const Gathered full = engine.gather(groups[i]);
                  const Gradients grads = engine.grads(groups[i]);
                  compute("backward " + std::to_string(i));
                }
              }
              engine.step({.learning_rate = 0.1});
            },
            {.seed = seed, .trace = &trace});
}

/// How many spans of `row` on rank 0 whose names begin so have a part in common with a layer's
/// computing.
std::int64_t beside_compute(const std::vector<Trace::Span>& spans, const std::string& row,
                            const std::string& name = "") {
  const auto computes = [](const Trace::Span& s) {
    return s.rank == 0 && s.row == "compute" &&
           (s.name.starts_with("forward") || s.name.starts_with("backward"));
  };
  return std::count_if(spans.begin(), spans.end(), [&](const Trace::Span& moving) {
    if (moving.rank != 0 || moving.row != row || !moving.name.starts_with(name)) return false;
    return std::any_of(spans.begin(), spans.end(), [&](const Trace::Span& s) {
      return computes(s) && s.begin_ns < moving.end_ns && moving.begin_ns < s.end_ns;
    });
  });
}

TEST(Overlap, TheTraceShowsGathersAndReductionsUnderCompute) {
  std::int64_t gathers = 0, reductions = 0;
  for (int attempt = 0; attempt < 10 && (gathers < 3 || reductions < 2); ++attempt) {
    Trace trace;
    train(trace, std::chrono::milliseconds(10), std::chrono::milliseconds(4), std::nullopt);
    gathers = beside_compute(trace.spans(), "gather");
    reductions = beside_compute(trace.spans(), "reduce");
  }
  EXPECT_GE(gathers, 3);
  EXPECT_GE(reductions, 2);
}

// Of six layer inputs the first four move, under the layers that follow and under the backwards of
// the layers above.
TEST(Overlap, TheTraceShowsLayerInputsMovingUnderCompute) {
  constexpr std::int64_t kLayers = 6, kElements = 50000;
  std::int64_t out = 0, in = 0;
  OffloadCounters moved;
  for (int attempt = 0; attempt < 10 && (out < 4 || in < 4); ++attempt) {
    Trace trace;
    run_ranks(1, [&](Rank& rank) {
      const auto device = make_device({.kind = DeviceKind::kCpuSim,
                                       .threads = 1,
                                       .capacity = Bytes(1 << 20),
                                       .host_link = Bytes(50'000'000),  // 4 ms a tensor
                                       .trace = &trace});
      const auto compute = device->make_stream({.name = "compute"});
      ActivationStore store(*device, *compute, {.mode = CheckpointMode::kHost}, kLayers,
                            Elements(kElements), DType::kF32);
      store.build();
      const auto work = [&](const char* name, int milliseconds) {
        compute->call(name, [milliseconds] {
          std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
        });
      };
      store.begin(Elements(kElements));
      for (std::int64_t i = 0; i < kLayers; ++i) {
        static_cast<void>(store.place(i));
        store.put(i);
        work("forward", 6);
      }
      for (std::int64_t i = kLayers; i-- > 0;) {
        static_cast<void>(store.take(i));
        work("backward", 12);
      }
      compute->synchronize();
      moved = store.counters();
      static_cast<void>(rank);
    });
    const std::vector<Trace::Span> spans = trace.spans();
    out = beside_compute(spans, "offload out", "copy_to_host");
    in = beside_compute(spans, "offload in", "copy_from_host");
  }
  EXPECT_EQ(out, 4);
  EXPECT_EQ(in, 4);
  EXPECT_GE(moved.moving_seconds, 8 * 0.004);
  EXPECT_LT(moved.waited_seconds, moved.moving_seconds / 2);
}

/// Whether a span of rank 0 ran before another.
bool before(const std::vector<Trace::Span>& spans, const std::string& first,
            const std::string& second) {
  const auto find = [&](const std::string& name) {
    return std::find_if(spans.begin(), spans.end(),
                        [&](const Trace::Span& s) { return s.rank == 0 && s.name == name; });
  };
  return find(first) < find(second);
}

struct Seen {
  bool gather_first = false, compute_first = false;
  bool reduction_first = false, next_layer_first = false;
};

TEST(Overlap, TheNextGatherAndTheLastReductionAreInNoOrderWithTheComputing) {
  Seen seen;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Trace trace;
    train(trace, {}, {}, seed);
    const std::vector<Trace::Span> spans = trace.spans();
    (before(spans, "all_gather g1", "forward 0") ? seen.gather_first : seen.compute_first) = true;
    (before(spans, "reduce_scatter g3", "backward 2") ? seen.reduction_first
                                                      : seen.next_layer_first) = true;
  }
  EXPECT_TRUE(seen.gather_first) << "the gather of layer 1 never ran before layer 0";
  EXPECT_TRUE(seen.compute_first) << "layer 0 never ran before the gather of layer 1";
  EXPECT_TRUE(seen.reduction_first) << "the reduction of layer 3 never ran before layer 2";
  EXPECT_TRUE(seen.next_layer_first) << "layer 2 never ran before the reduction of layer 3";
}

}  // namespace
}  // namespace zero3::test
