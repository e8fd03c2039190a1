#include <zero3/trainer/llama_model.h>

#include <algorithm>
#include <array>
#include <vector>

#include <zero3/copy.h>
#include <zero3/embedding.h>
#include <zero3/layer_stack.h>
#include <zero3/trainer/llama_block.h>

namespace zero3::trainer {
namespace {

/// Where a group's parameters are.
struct EmbeddingParams {
  static constexpr int kTable = 0;
};
struct HeadParams {
  int norm = 0, table = 1;
};

ParamSpec table_param(const LlamaConfig& config, std::string name, int optimizer_group) {
  return {.name = std::move(name),
          .shape = {config.vocab, config.hidden},
          .init = Init::normal(config.initializer_range),
          .optimizer_group = optimizer_group};
}

ParamSpec final_norm_param(const LlamaConfig& config) {
  return {.name = "model.norm.weight",
          .shape = {config.hidden},
          .init = Init::ones(),
          .optimizer_group = kNotDecayed};
}

GroupSpec embedding_group(const LlamaConfig& config) {
  GroupSpec spec = {.name = "embedding",
                    .params = {table_param(config, "model.embed_tokens.weight", kNotDecayed)}};
  if (config.tied) {
    spec.params.push_back(final_norm_param(config));
    spec.uses = 2;
  }
  return spec;
}

GroupSpec head_group(const LlamaConfig& config) {
  return {.name = "head",
          .params = {final_norm_param(config), table_param(config, "lm_head.weight", kDecayed)}};
}

void check_options(const Engine& engine, const LlamaConfig& config, const LlamaOptions& options) {
  validate(config);
  const DType param = engine.options().precision.param;
  ZERO3_CHECK(options.dtype == param, "the model computes in ", options.dtype,
              " and the engine gathers parameters in ", param, "; give both the same dtype");
  ZERO3_CHECK(options.dtype == DType::kF32 || options.dtype == DType::kBF16,
              "the model computes in ", DType::kF32, " or ", DType::kBF16, ", not in ",
              options.dtype);
  ZERO3_CHECK(options.tokens.batch >= 1 && options.tokens.seq >= 1, "a micro-batch of ",
              options.tokens.batch, " sequences of ", options.tokens.seq,
              " tokens is empty; give at least 1 of 1");
  ZERO3_CHECK(options.granule_rows >= 1, "granules of ", options.granule_rows,
              " rows are impossible; give at least 1");
}

/// Token ids on their way to the device. A copy reads its slot until the stream has passed it, so a
/// slot is written again only then: the host may run kSlots micro-batches ahead.
class TokenUpload {
 public:
  explicit TokenUpload(Stream& stream) : stream_(stream) {}
  ~TokenUpload() {
    for (const Slot& slot : slots_) {
      try {
        slot.copied.synchronize();
      } catch (const std::exception&) {
        // The stream keeps its error for whoever synchronises it.
      }
    }
  }
  TokenUpload(const TokenUpload&) = delete;
  TokenUpload& operator=(const TokenUpload&) = delete;

  void copy(TensorView target_inputs, TensorView target_targets,
            std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets) {
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    slot.copied.synchronize();
    slot.inputs.assign(inputs.begin(), inputs.end());
    slot.targets.assign(targets.begin(), targets.end());
    copy_from_host(target_inputs, slot.inputs.data(), stream_);
    copy_from_host(target_targets, slot.targets.data(), stream_);
    slot.copied = stream_.record();
  }

 private:
  static constexpr std::size_t kSlots = 3;
  struct Slot {
    std::vector<std::int32_t> inputs, targets;
    Event copied;
  };
  Stream& stream_;
  std::array<Slot, kSlots> slots_;
  std::size_t next_ = 0;
};

}  // namespace

struct LlamaModel::State {
  State(Engine& the_engine, const LlamaConfig& the_config, const LlamaOptions& the_options);

  /// Views of what the buffers hold for one micro-batch.
  struct Batch {
    TokenShape tokens;
    TensorView inputs, targets, row_losses;
    /// Targets that count.
    std::int64_t counted = 0;
  };
  [[nodiscard]] Batch upload(std::span<const std::int32_t> inputs,
                             std::span<const std::int32_t> targets, TokenShape tokens);
  [[nodiscard]] TensorView run_forward(const Batch& batch, Pass pass, BatchPlace place);
  [[nodiscard]] LossHead::Call head_call(const Batch& batch);
  [[nodiscard]] LossHead::Weights head_weights(const Gathered& gathered) const {
    return {.norm = gathered[head_params.norm], .table = gathered[head_params.table]};
  }
  [[nodiscard]] EmbeddingShape embedding_shape(TokenShape tokens) const {
    return {.rows = tokens.rows(), .width = config.hidden, .vocab = config.vocab};
  }
  [[nodiscard]] Bytes workspace_bytes() const {
    return std::max(stack->workspace_bytes(), head.workspace_bytes());
  }
  [[nodiscard]] Elements rope_size() const {
    return Elements(options.tokens.seq * config.head_dim / 2);
  }
  /// `untiled`: what the blocks are made with, but for tiles.
  [[nodiscard]] std::int64_t choose_tile_rows(const LlamaBlockOptions& untiled) const;
  void upload_rope_tables();

  Engine& engine;
  LlamaConfig config;
  LlamaOptions options;
  Stream& stream;
  RopeViews rope;
  LossHead head;
  GroupId embedding_id, head_id;
  HeadParams head_params;
  std::unique_ptr<LayerStack> stack;
  BlockPhases block_phases;
  std::int64_t rows_of_tile = 0;

  Buffer rope_cos, rope_sin, workspace, inputs, targets, row_losses, loss_sum;
  TokenUpload token_upload;
};

LlamaModel::State::State(Engine& the_engine, const LlamaConfig& the_config,
                         const LlamaOptions& the_options)
    : engine(the_engine),
      config(the_config),
      options(the_options),
      stream(engine.compute()),
      head({.rows = options.tokens.rows(),
            .width = config.hidden,
            .vocab = config.vocab,
            .rms_norm_eps = config.rms_norm_eps,
            .dtype = options.dtype,
            .granule_rows = options.granule_rows,
            .threads = stream.device().threads()}),
      token_upload(stream) {
  LlamaBlockOptions block_options = {.dtype = options.dtype,
                                     .granule_rows = options.granule_rows,
                                     .threads = stream.device().threads(),
                                     .tile = {.kind = TilePolicy::Kind::kNone},
                                     .recompute = options.checkpoints.recompute(),
                                     .dropout = options.dropout,
                                     .seed = options.seed};
  rows_of_tile = choose_tile_rows(block_options);
  // A smaller micro-batch must not need a larger tile, nor have too few rows for a count.
  block_options.tile = {.kind = TilePolicy::Kind::kRows, .value = rows_of_tile};
  std::vector<std::unique_ptr<Layer>> blocks;
  for (std::int64_t i = 0; i < config.layers; ++i) {
    auto block = std::make_unique<LlamaBlock>(config, i, block_options, rope);
    block_phases = block->phases(options.tokens);
    blocks.push_back(std::move(block));
  }
  embedding_id = engine.add_group(embedding_group(config));
  stack = std::make_unique<LayerStack>(engine, std::move(blocks),
                                       LayerStackOptions{.width = config.hidden,
                                                         .dtype = options.dtype,
                                                         .tokens = options.tokens,
                                                         .checkpoints = options.checkpoints,
                                                         .granule_rows = options.granule_rows});
  head_id = config.tied ? embedding_id : engine.add_group(head_group(config));
  if (config.tied) head_params = {.norm = 1, .table = EmbeddingParams::kTable};

  std::vector<GroupId> gathers = {embedding_id}, gradients = {head_id};
  const std::vector<GroupId> groups = stack->groups();
  gathers.insert(gathers.end(), groups.begin(), groups.end());
  gathers.push_back(head_id);
  gathers.insert(gathers.end(), groups.rbegin(), groups.rend());
  gradients.insert(gradients.end(), groups.rbegin(), groups.rend());
  gradients.push_back(embedding_id);
  engine.expect_order(std::move(gathers), std::move(gradients));
}

std::int64_t LlamaModel::State::choose_tile_rows(const LlamaBlockOptions& untiled) const {
  if (options.tile.kind == TilePolicy::Kind::kAuto) {
    const BlockPhases whole = LlamaBlock(config, 0, untiled, rope).phases(options.tokens);
    if (whole.mlp <= std::max(whole.attention, head.workspace_bytes()))
      return options.tokens.rows();
  }
  return tile_rows(options.tile, options.tokens, config.hidden, options.granule_rows);
}

void LlamaModel::State::upload_rope_tables() {
  const RopeTable table = make_rope_table(config.rope, options.tokens.seq);
  rope_cos = Buffer(rope_size(), DType::kF32, MemoryTag::kWorkspace, stream);
  rope_sin = Buffer(rope_size(), DType::kF32, MemoryTag::kWorkspace, stream);
  rope = {.cos = rope_cos.view(), .sin = rope_sin.view()};
  copy_from_host(rope.cos, table.cos.data(), stream);
  copy_from_host(rope.sin, table.sin.data(), stream);
  stream.synchronize();
}

LlamaModel::State::Batch LlamaModel::State::upload(std::span<const std::int32_t> input_ids,
                                                   std::span<const std::int32_t> target_ids,
                                                   TokenShape tokens) {
  ZERO3_CHECK(!workspace.empty(), "the model is used before its build()");
  ZERO3_CHECK(tokens.batch >= 0 && tokens.batch <= options.tokens.batch && tokens.seq >= 0 &&
                  tokens.seq <= options.tokens.seq,
              "a micro-batch of ", tokens.batch, " x ", tokens.seq,
              " tokens is larger than the planned ", options.tokens.batch, " x ",
              options.tokens.seq);
  const std::int64_t rows = tokens.rows();
  ZERO3_CHECK(std::ssize(input_ids) == rows && std::ssize(target_ids) == rows, input_ids.size(),
              " inputs and ", target_ids.size(), " targets are given for ", tokens.batch, " x ",
              tokens.seq, " tokens");
  const auto in_vocabulary = [&](std::int32_t id) { return id >= 0 && id < config.vocab; };
  Batch batch = {.tokens = tokens,
                 .inputs = inputs.view().slice(0, rows),
                 .targets = targets.view().slice(0, rows),
                 .row_losses = row_losses.view().slice(0, rows)};
  for (std::size_t i = 0; i < input_ids.size(); ++i) {
    ZERO3_CHECK(in_vocabulary(input_ids[i]), "token ", i, " is ", input_ids[i],
                ", outside of the vocabulary of ", config.vocab);
    if (target_ids[i] == kIgnoreToken) continue;
    ZERO3_CHECK(in_vocabulary(target_ids[i]), "target ", i, " is ", target_ids[i],
                ", outside of the vocabulary of ", config.vocab);
    ++batch.counted;
  }
  token_upload.copy(batch.inputs, batch.targets, input_ids, target_ids);
  return batch;
}

TensorView LlamaModel::State::run_forward(const Batch& batch, Pass pass, BatchPlace place) {
  {
    const Gathered weights = engine.gather(embedding_id);
    embedding_forward(stack->input(batch.tokens), weights[EmbeddingParams::kTable], batch.inputs,
                      embedding_shape(batch.tokens), stream);
  }
  return stack->forward(batch.tokens, pass, place);
}

LossHead::Call LlamaModel::State::head_call(const Batch& batch) {
  return {.stream = stream,
          .gemm = stack->gemm(),
          .workspace = workspace.view(),
          .targets = batch.targets,
          .row_losses = batch.row_losses,
          .loss_sum = loss_sum.view()};
}

LlamaModel::LlamaModel(Engine& engine, const LlamaConfig& config, const LlamaOptions& options) {
  check_options(engine, config, options);
  state_ = std::make_unique<State>(engine, config, options);
}

LlamaModel::~LlamaModel() = default;

MemoryPlan LlamaModel::plan() const {
  const State& state = *state_;
  const Elements rows(state.options.tokens.rows());
  MemoryPlan plan = state.stack->plan();
  // One block for the stack and for the head, as large as the greater of the two needs.
  plan[MemoryTag::kWorkspace] =
      aligned(state.workspace_bytes()) + 2 * aligned(bytes_of(state.rope_size(), DType::kF32));
  plan[MemoryTag::kActivations] += 2 * aligned(bytes_of(rows, DType::kI32)) +
                                   aligned(bytes_of(rows, DType::kF64)) +
                                   aligned(bytes_of(Elements(1), DType::kF64));
  return plan;
}

LlamaPhases LlamaModel::phases() const {
  const State& state = *state_;
  return {.attention = state.block_phases.attention,
          .mlp = state.block_phases.mlp,
          .head = state.head.workspace_bytes()};
}

std::int64_t LlamaModel::tiles() const {
  return div_ceil(state_->options.tokens.rows(), state_->rows_of_tile);
}

void LlamaModel::build() {
  State& state = *state_;
  const Elements rows(state.options.tokens.rows());
  const auto allocate = [&](Elements size, DType dtype, MemoryTag tag) {
    return Buffer(size, dtype, tag, state.stream);
  };
  state.upload_rope_tables();
  state.workspace =
      allocate(Elements(state.workspace_bytes().count()), DType::kU8, MemoryTag::kWorkspace);
  state.inputs = allocate(rows, DType::kI32, MemoryTag::kActivations);
  state.targets = allocate(rows, DType::kI32, MemoryTag::kActivations);
  state.row_losses = allocate(rows, DType::kF64, MemoryTag::kActivations);
  state.loss_sum = allocate(Elements(1), DType::kF64, MemoryTag::kActivations);
  state.stack->build(state.workspace.view());
}

void LlamaModel::train(MicroStep& micro_step, std::span<const std::int32_t> inputs,
                       std::span<const std::int32_t> targets, TokenShape tokens, BatchPlace place) {
  State& state = *state_;
  const State::Batch batch = state.upload(inputs, targets, tokens);
  const TensorView hidden = state.run_forward(batch, Pass::kTraining, place);
  {
    const Gathered weights = state.engine.gather(state.head_id);
    const Gradients grads = state.engine.grads(state.head_id);
    state.head.train(
        state.head_call(batch), state.head_weights(weights),
        {.norm = grads[state.head_params.norm], .table = grads[state.head_params.table]}, hidden,
        state.engine.options().loss_scale);
  }
  micro_step.report(state.loss_sum.view(), batch.counted);
  state.stack->backward(hidden);
  const Gradients grads = state.engine.grads(state.embedding_id);
  embedding_backward(grads[EmbeddingParams::kTable], hidden, batch.inputs,
                     state.embedding_shape(tokens), state.stream);
}

LlamaModel::Loss LlamaModel::evaluate(std::span<const std::int32_t> inputs,
                                      std::span<const std::int32_t> targets, TokenShape tokens) {
  State& state = *state_;
  const State::Batch batch = state.upload(inputs, targets, tokens);
  const InferencePass pass = state.engine.begin_inference();
  const TensorView hidden = state.run_forward(batch, Pass::kInference, {});
  Loss loss = {.tokens = batch.counted};
  {
    const Gathered weights = state.engine.gather(state.head_id);
    state.head.evaluate(state.head_call(batch), state.head_weights(weights), hidden);
  }
  copy_to_host(&loss.sum, state.loss_sum.view(), state.stream);
  state.stream.synchronize();
  return loss;
}

const ActivationStore& LlamaModel::layer_inputs() const {
  return state_->stack->inputs();
}

}  // namespace zero3::trainer
