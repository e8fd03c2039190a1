#include <zero3/gathered.h>

#include <exception>
#include <utility>

#include <zero3/error.h>
#include "engine_state.h"

namespace zero3 {

Gathered::Gathered(Engine& engine, GroupId group)
    : engine_(&engine), group_(group), epoch_(engine.state_->epoch) {}

Gathered::~Gathered() {
  if (engine_ == nullptr || engine_->state_->epoch != epoch_) return;
  engine_->state_->gatherer->release(group_);
}

TensorView Gathered::operator[](int index) const {
  ZERO3_CHECK(engine_ != nullptr, "parameters are read through a handle that was moved from");
  Engine::State& state = *engine_->state_;
  ZERO3_CHECK(state.epoch == epoch_, "parameters of group '", state.group(group_).spec.name,
              "' are read through a handle from before reset(); gather them again");
  return state.gatherer->view(group_, index);
}

Gradients::Gradients(Engine& engine, GroupId group)
    : engine_(&engine),
      group_(group),
      epoch_(engine.state_->epoch),
      exceptions_(std::uncaught_exceptions()) {}

Gradients::~Gradients() {
  if (engine_ == nullptr || engine_->state_->epoch != epoch_) return;
  Engine::State& state = *engine_->state_;
  if (std::uncaught_exceptions() > exceptions_) {
    state.poisoned = true;
    return;
  }
  try {
    state.reducer->close(state.group(group_));
  } catch (...) {
    state.fail_later();
  }
}

TensorView Gradients::operator[](int index) const {
  ZERO3_CHECK(engine_ != nullptr, "gradients are asked for through a handle that was moved from");
  Engine::State& state = *engine_->state_;
  ZERO3_CHECK(state.epoch == epoch_, "gradients of group '", state.group(group_).spec.name,
              "' are asked for through a handle from before reset()");
  return state.reducer->view(state.group(group_), index);
}

MicroStep::MicroStep(Engine& engine)
    : engine_(&engine), epoch_(engine.state_->epoch), exceptions_(std::uncaught_exceptions()) {}

MicroStep::~MicroStep() {
  if (engine_ == nullptr || engine_->state_->epoch != epoch_) return;
  Engine::State& state = *engine_->state_;
  if (std::uncaught_exceptions() > exceptions_) {
    state.poisoned = true;
    state.in_micro_step = false;
    return;
  }
  try {
    end();
  } catch (...) {
    state.fail_later();
  }
}

void MicroStep::report(TensorView loss_sum, std::int64_t tokens) {
  ZERO3_CHECK(engine_ != nullptr && engine_->state_->epoch == epoch_,
              "a loss is reported to a micro-step that has ended");
  Engine::State& state = *engine_->state_;
  ZERO3_CHECK(!state.loss_reported, "a loss is reported twice in one micro-step; sum it first");
  ZERO3_CHECK(tokens >= 0, "a micro-step reports ", tokens, " tokens");
  state.norm->report_loss(state.micro_steps_begun - 1, loss_sum);
  state.tokens += tokens;
  state.loss_reported = true;
}

void MicroStep::end() {
  if (engine_ == nullptr || engine_->state_->epoch != epoch_) return;
  std::exchange(engine_, nullptr)->state_->end_micro_step();
}

InferencePass::InferencePass(Engine& engine) : engine_(&engine), epoch_(engine.state_->epoch) {}

InferencePass::~InferencePass() {
  if (engine_ == nullptr || engine_->state_->epoch != epoch_) return;
  Engine::State& state = *engine_->state_;
  state.in_inference = false;
  state.inference_plan.end();
  try {
    state.gatherer->follow(nullptr);
  } catch (...) {
    state.fail_later();
  }
}

}  // namespace zero3
