#include <zero3/layer_stack.h>

#include <algorithm>
#include <utility>

#include <zero3/error.h>

namespace zero3 {

struct LayerStack::State {
  Engine& engine;
  std::vector<std::unique_ptr<Layer>> layers;
  LayerStackOptions options;
  std::vector<GroupId> groups;
  std::unique_ptr<Gemm> gemm = nullptr;
  TensorView workspace = {};
  std::unique_ptr<ActivationStore> inputs = nullptr;
  /// Of the last layer.
  Buffer output = {};
  /// One per layer, or one for all with recompute.
  std::vector<Buffer> saved = {};
  TokenShape current = {};
  BatchPlace place = {};
  bool trained = false;

  [[nodiscard]] Elements hidden_size() const {
    return Elements(options.tokens.rows() * options.width);
  }
  [[nodiscard]] std::size_t saved_count() const {
    return recompute() ? std::min<std::size_t>(1, layers.size()) : layers.size();
  }
  [[nodiscard]] Bytes saved_bytes(std::size_t layer) const {
    if (!recompute()) return layers[layer]->memory(options.tokens).saved;
    Bytes largest;
    for (const auto& l : layers) largest = std::max(largest, l->memory(options.tokens).saved);
    return largest;
  }
  [[nodiscard]] bool recompute() const { return options.checkpoints.recompute(); }
  [[nodiscard]] Elements current_size() const { return Elements(current.rows() * options.width); }
  [[nodiscard]] TensorView output_rows() const {
    return output.view().slice(Elements(0), current_size());
  }
  [[nodiscard]] TensorView saved_of(std::size_t layer) const {
    return saved[recompute() ? 0 : layer].view();
  }
  [[nodiscard]] LayerContext context(bool training) const {
    return {current, engine.compute(), *gemm, workspace, place, training};
  }
  void set_current(TokenShape tokens) {
    ZERO3_CHECK(!output.empty(), "a layer stack is used before build()");
    ZERO3_CHECK(tokens.batch >= 0 && tokens.seq >= 0 && tokens.rows() <= options.tokens.rows(),
                "a micro-batch of ", tokens.batch, " x ", tokens.seq,
                " tokens in a layer stack that was built for ", options.tokens.batch, " x ",
                options.tokens.seq);
    current = tokens;
  }
};

LayerStack::LayerStack(Engine& engine, std::vector<std::unique_ptr<Layer>> layers,
                       LayerStackOptions options)
    : state_(new State{engine, std::move(layers), std::move(options), {}}) {
  State& s = *state_;
  for (const auto& layer : s.layers) s.groups.push_back(engine.add_group(layer->group()));
  s.inputs = std::make_unique<ActivationStore>(
      engine.device(), engine.compute(), s.options.checkpoints,
      static_cast<std::int64_t>(s.layers.size()), s.hidden_size(), s.options.dtype);
}

LayerStack::~LayerStack() = default;

MemoryPlan LayerStack::plan() const {
  const State& s = *state_;
  MemoryPlan plan = s.inputs->plan();
  plan[MemoryTag::kActivations] += aligned(bytes_of(s.hidden_size(), s.options.dtype));
  for (std::size_t i = 0; i < s.saved_count(); ++i)
    plan[MemoryTag::kActivations] += aligned(s.saved_bytes(i));
  return plan;
}

std::vector<GroupId> LayerStack::groups() const {
  return state_->groups;
}

Bytes LayerStack::workspace_bytes() const {
  Bytes largest;
  for (const auto& layer : state_->layers) {
    largest = std::max(largest, layer->memory(state_->options.tokens).workspace);
  }
  return largest;
}

void LayerStack::build(TensorView workspace) {
  State& s = *state_;
  ZERO3_CHECK(s.output.empty(), "a layer stack is built twice");
  ZERO3_CHECK(workspace.bytes() >= workspace_bytes(), "a layer stack needs ", workspace_bytes(),
              " of workspace, not ", workspace.bytes());
  Stream& stream = s.engine.compute();
  s.workspace = workspace;
  s.gemm = std::make_unique<Gemm>(stream, s.options.granule_rows);
  s.inputs->build();
  s.output = Buffer(s.hidden_size(), s.options.dtype, MemoryTag::kActivations, stream);
  for (std::size_t i = 0; i < s.saved_count(); ++i) {
    s.saved.emplace_back(Elements(s.saved_bytes(i).count()), DType::kU8, MemoryTag::kActivations,
                         stream);
  }
}

TensorView LayerStack::input(TokenShape tokens) {
  State& s = *state_;
  s.set_current(tokens);
  s.inputs->begin(s.current_size());
  s.trained = false;
  return s.layers.empty() ? s.output_rows() : s.inputs->place(0);
}

TensorView LayerStack::forward(TokenShape tokens, Pass pass, BatchPlace place) {
  State& s = *state_;
  ZERO3_CHECK(pass != Pass::kRecompute, "a whole layer stack is asked to recompute");
  s.set_current(tokens);
  s.place = place;
  const bool training = pass == Pass::kTraining;
  s.inputs->begin(s.current_size());
  TensorView in = s.layers.empty() ? TensorView() : s.inputs->place(0);
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    const Gathered weights = s.engine.gather(s.groups[i]);
    const auto index = static_cast<std::int64_t>(i);
    // Moves while the layer computes, which only reads it.
    if (training) s.inputs->put(index);
    const bool last = i + 1 == s.layers.size();
    const TensorView out = last ? s.output_rows() : s.inputs->place(index + 1);
    s.layers[i]->forward(s.context(training), weights, in, out, s.saved_of(i),
                         s.recompute() ? Pass::kInference : pass);
    in = out;
  }
  s.trained = training;
  return s.output_rows();
}

void LayerStack::backward(TensorView gradient) {
  State& s = *state_;
  ZERO3_CHECK(std::exchange(s.trained, false),
              "backward of a layer stack without a training forward before it");
  for (std::size_t i = s.layers.size(); i-- > 0;) {
    const Gathered weights = s.engine.gather(s.groups[i]);
    const TensorView in = s.inputs->take(static_cast<std::int64_t>(i));
    if (s.recompute()) {
      s.layers[i]->forward(s.context(true), weights, in, TensorView(), s.saved_of(i),
                           Pass::kRecompute);
    }
    const Gradients grads = s.engine.grads(s.groups[i]);
    s.layers[i]->backward(s.context(true), weights, grads, in, s.saved_of(i), gradient);
  }
}

Gemm& LayerStack::gemm() {
  ZERO3_CHECK(state_->gemm != nullptr, "a layer stack is used before build()");
  return *state_->gemm;
}

const ActivationStore& LayerStack::inputs() const {
  return *state_->inputs;
}

}  // namespace zero3
