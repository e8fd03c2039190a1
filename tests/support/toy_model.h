#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "support/run_ranks.h"
#include "support/toy_layers.h"

namespace zero3::test::toy {

/// An embedding, a stack of ToyLayers and a head, as a user of the engine writes them.
class ToyModel {
 public:
  ToyModel(Engine& engine, const Shape& shape, const ActivationCheckpoints& checkpoints = {})
      : engine_(engine), shape_(shape) {
    embedding_ = engine.add_group(table_group(shape, "embedding", shape.tied ? 2 : 1));
    std::vector<std::unique_ptr<Layer>> layers;
    for (std::size_t i = 0; i < shape.layers; ++i)
      layers.push_back(std::make_unique<ToyLayer>(shape, i, &failing_));
    stack_ = std::make_unique<LayerStack>(
        engine, std::move(layers),
        LayerStackOptions{.width = static_cast<std::int64_t>(shape.width),
                          .tokens = tokens(),
                          .checkpoints = checkpoints});
    head_ = shape.tied ? embedding_ : engine.add_group(table_group(shape, "head", 1));
    expect_order();
  }

  [[nodiscard]] MemoryPlan plan() const {
    MemoryPlan plan = stack_->plan();
    plan[MemoryTag::kActivations] += aligned(bytes_of(hidden_size(), DType::kF32));
    plan[MemoryTag::kActivations] += aligned(bytes_of(Elements(1), DType::kF64));
    return plan;
  }
  void build() {
    stack_->build(TensorView());
    Stream& stream = engine_.compute();
    gradient_ = Buffer(hidden_size(), DType::kF32, MemoryTag::kActivations, stream);
    loss_ = Buffer(Elements(1), DType::kF64, MemoryTag::kActivations, stream);
  }

  /// Forward and backward of micro-batch `j`, reported to `micro_step`.
  void train(MicroStep& micro_step, std::int64_t step, std::int64_t j) {
    forward(micro_step, step, j);
    backward();
  }
  /// The first half of train(), with the head's backward.
  void forward(MicroStep& micro_step, std::int64_t step, std::int64_t j) {
    batch_ = std::make_shared<const Batch>(shape_, step, j);
    embed_tokens(batch_);
    const TensorView out = stack_->forward(tokens(), Pass::kTraining);
    {
      const Gathered weights = engine_.gather(head_);
      const Gradients grads = engine_.grads(head_);
      run_head(batch_, weights, out, host(gradient_.view()), host(grads[0]));
    }
    micro_step.report(loss_.view(), static_cast<std::int64_t>(shape_.rows));
  }
  void backward() {
    stack_->backward(gradient_.view());
    const Gradients grads = engine_.grads(embedding_);
    task(engine_.compute(), "embedding backward", {},
         [s = shape_, batch = batch_, g = host(grads[0]), d = host(gradient_.view())] {
           embed_backward(s, g, batch->tokens, d);
         });
  }
  /// The next backward throws LayerFailure there.
  void fail_in_layer(std::size_t index) { failing_ = index; }

  /// Loss of micro-batch `j`; blocks.
  double evaluate(std::int64_t step, std::int64_t j) {
    const auto batch = std::make_shared<const Batch>(shape_, step, j);
    {
      const InferencePass pass = engine_.begin_inference();
      embed_tokens(batch);
      const TensorView out = stack_->forward(tokens(), Pass::kInference);
      run_head(batch, engine_.gather(head_), out, Out(), Out());
    }
    double loss = 0;
    copy_to_host(&loss, loss_.view(), engine_.compute());
    engine_.compute().synchronize();
    return loss;
  }

  [[nodiscard]] LayerStack& stack() { return *stack_; }
  [[nodiscard]] GroupId embedding() const { return embedding_; }

 private:
  [[nodiscard]] TokenShape tokens() const {
    return {.batch = 1, .seq = static_cast<std::int64_t>(shape_.rows)};
  }
  [[nodiscard]] Elements hidden_size() const {
    return Elements(static_cast<std::int64_t>(shape_.rows * shape_.width));
  }

  void expect_order() {
    const std::vector<GroupId> layers = stack_->groups();
    std::vector<GroupId> gathers = {embedding_};
    gathers.insert(gathers.end(), layers.begin(), layers.end());
    gathers.push_back(head_);
    gathers.insert(gathers.end(), layers.rbegin(), layers.rend());
    std::vector<GroupId> gradients = {head_};
    gradients.insert(gradients.end(), layers.rbegin(), layers.rend());
    gradients.push_back(embedding_);
    engine_.expect_order(std::move(gathers), std::move(gradients));
  }

  void embed_tokens(const std::shared_ptr<const Batch>& batch) {
    const Gathered weights = engine_.gather(embedding_);
    const TensorView in = stack_->input(tokens());
    task(engine_.compute(), "embedding", {in},
         [s = shape_, batch, table = Elements32(weights[0]), x = host(in)] {
           embed(s, table.read(), batch->tokens, x);
         });
  }

  void run_head(const std::shared_ptr<const Batch>& batch, const Gathered& weights,
                const TensorView& out, Out d, Out d_table) {
    task(engine_.compute(), "head", {loss_.view()},
         [s = shape_, batch, table = Elements32(weights[0]), y = host(out), d, d_table,
          scale = engine_.options().loss_scale, loss = internal::native<double>(loss_.view())] {
           *loss = head(s, table.read(), y, batch->targets, scale, d, d_table);
         });
  }

  Engine& engine_;
  Shape shape_;
  GroupId embedding_, head_;
  std::unique_ptr<LayerStack> stack_;
  Buffer gradient_, loss_;
  std::shared_ptr<const Batch> batch_;
  std::optional<std::size_t> failing_;
};

/// What a run shows; equal runs are equal in every bit.
struct Trajectory {
  std::vector<double> losses, norms;
  double evaluation = 0;
  std::uint64_t checksum = 0;
  friend bool operator==(const Trajectory&, const Trajectory&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Trajectory& t) {
    out << "losses";
    for (const double loss : t.losses) out << ' ' << loss;
    out << ", norms";
    for (const double norm : t.norms) out << ' ' << norm;
    return out << ", evaluation " << t.evaluation << ", checksum " << t.checksum;
  }
};

/// Trains and evaluates; the engine's micro-steps make `N · micro_steps` micro-batches a step.
inline Trajectory train(Engine& engine, ToyModel& model, int steps, double learning_rate = 0.01) {
  Trajectory trajectory;
  const int ranks = engine.world_size();
  for (int step = 0; step < steps; ++step) {
    for (int micro_step = 0; micro_step < engine.options().micro_steps; ++micro_step) {
      MicroStep scope = engine.begin_micro_step();
      model.train(scope, step, micro_step * ranks + engine.rank());
      scope.end();
    }
    const StepResult result = engine.step({.learning_rate = learning_rate});
    trajectory.losses.push_back(result.loss_sum / static_cast<double>(result.tokens));
    trajectory.norms.push_back(result.grad_norm);
  }
  trajectory.evaluation = model.evaluate(1000, 0);
  trajectory.checksum = engine.weights_checksum();
  return trajectory;
}

struct RunOptions {
  Shape shape = {};
  EngineOptions engine = {};
  ActivationCheckpoints checkpoints = {};
  int steps = 3;
};

/// The trajectory of rank 0; fails the test if another rank's differs.
inline Trajectory run_toy(int world_size, const RunOptions& options,
                          const RanksOptions& ranks = {}) {
  std::vector<Trajectory> all(static_cast<std::size_t>(world_size));
  run_ranks(
      world_size,
      [&](Rank& rank) {
        Engine engine(*rank.device, *rank.communicator, options.engine);
        ToyModel model(engine, options.shape, options.checkpoints);
        engine.build();
        model.build();
        all[static_cast<std::size_t>(rank.rank)] = train(engine, model, options.steps);
      },
      ranks);
  for (const Trajectory& trajectory : all) EXPECT_EQ(trajectory, all[0]);
  return all[0];
}

}  // namespace zero3::test::toy
