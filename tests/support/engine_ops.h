#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <zero3/half.h>
#include <zero3/internal/cpu_stream.h>
#include <zero3/zero3.h>
#include "run_ranks.h"

/// What tests of the engine do with its views, on "cpu" and "cpu:sim" alike.
namespace zero3::test {

/// A view's elements as fp32, for use inside of a task.
struct Elements32 {
  explicit Elements32(const TensorView& view)
      : data(internal::native_data(view)),
        count(static_cast<std::size_t>(view.count())),
        dtype(view.dtype()) {}

  [[nodiscard]] std::vector<float> read() const {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (dtype == DType::kF32) values[i] = static_cast<const float*>(data)[i];
      if (dtype == DType::kBF16)
        values[i] = static_cast<float>(static_cast<const BFloat16*>(data)[i]);
      if (dtype == DType::kF16)
        values[i] = static_cast<float>(static_cast<const Float16*>(data)[i]);
    }
    return values;
  }
  void* data;
  std::size_t count;
  DType dtype;
};

/// An fp32 view as host memory, for use inside of a task.
inline std::span<float> host(const TensorView& view) {
  return {internal::native<float>(view), static_cast<std::size_t>(view.count())};
}

/// Enqueues `run`, which overwrites `outputs` without reading them.
inline void task(Stream& stream, std::string name, const std::vector<TensorView>& outputs,
                 std::function<void()> run) {
  internal::CpuTask task{.name = std::move(name), .run = std::move(run)};
  for (const TensorView& view : outputs) {
    if (!view.empty()) task.outputs.push_back(internal::output(view));
  }
  internal::enqueue(stream, std::move(task));
}

/// gradient[i] += value(i), on the engine's compute stream.
inline void add_gradient(Engine& engine, const TensorView& gradient,
                         std::function<float(std::int64_t)> value) {
  task(engine.compute(), "add gradient", {}, [g = host(gradient), value = std::move(value)] {
    for (std::size_t i = 0; i < g.size(); ++i) g[i] += value(static_cast<std::int64_t>(i));
  });
}

/// What the view holds when the engine's compute stream has come so far. Blocks.
inline std::vector<float> values_of(Engine& engine, const TensorView& view) {
  std::vector<float> values;
  engine.compute().call("read", [&values, source = Elements32(view)] { values = source.read(); });
  engine.compute().synchronize();
  return values;
}

/// An engine of a single rank.
inline void one_rank(const EngineOptions& options,
                     const std::function<void(Engine&, Rank&)>& test) {
  run_ranks(1, [&](Rank& rank) {
    Engine engine(*rank.device, *rank.communicator, options);
    test(engine, rank);
  });
}

/// A group of one parameter of the same name.
inline GroupSpec group_of(std::string name, std::vector<std::int64_t> shape, Init init = {},
                          int uses = 1) {
  ParamSpec param{.name = name, .shape = std::move(shape), .init = init};
  return {.name = std::move(name), .params = {std::move(param)}, .uses = uses};
}

/// A micro-step that gives each group's first parameter a gradient of one value.
inline void micro_step_of(Engine& engine, const std::vector<std::pair<GroupId, float>>& gradients) {
  MicroStep scope = engine.begin_micro_step();
  for (const auto& [group, value] : gradients) {
    const Gradients grads = engine.grads(group);
    add_gradient(engine, grads[0], [v = value](std::int64_t) { return v; });
  }
  scope.end();
}

}  // namespace zero3::test
