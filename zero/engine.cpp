#include <cmath>
#include <utility>

#include <zero3/error.h>
#include "engine_state.h"

namespace zero3 {

ParamGroup& Engine::State::group(GroupId id) {
  ZERO3_CHECK(id.index >= 0 && static_cast<std::size_t>(id.index) < groups.size(),
              "there is no group ", id.index, "; ", groups.size(), " are registered");
  return groups[static_cast<std::size_t>(id.index)];
}

void Engine::State::check_usable(std::string_view what) const {
  ZERO3_CHECK(built, what, " before build()");
  ZERO3_CHECK(!poisoned, what, " on rank ", communicator.rank(),
              " after a micro-step that ended by an exception; call reset() first");
}

void Engine::State::fail_later() noexcept {
  poisoned = true;
  if (pending == nullptr) pending = std::current_exception();
}

Engine::Engine(Device& device, Communicator& communicator, EngineOptions options)
    : state_(std::make_unique<State>(device, communicator, std::move(options))) {}

Engine::~Engine() {
  State& s = *state_;
  if (s.reducer) s.reducer->drop_all();
  if (s.gatherer) s.gatherer->drop_all();
  // Shards go back in the order of compute, and the other streams use them as well.
  s.drain();
}

void Engine::State::drain() noexcept {
  for (Stream* stream : {compute.get(), gather.get(), reduce.get()}) {
    try {
      stream->synchronize();
    } catch (...) {
      // The error of operations whose results are not wanted any more.
    }
  }
}

Stream& Engine::compute() {
  return *state_->compute;
}

Device& Engine::device() {
  return state_->device;
}

Gathered Engine::gather(GroupId group) {
  state_->check_usable("gather");
  static_cast<void>(state_->group(group));
  state_->gatherer->acquire(group);
  return {*this, group};
}

Gradients Engine::grads(GroupId group) {
  State& s = *state_;
  s.check_usable("grads");
  ZERO3_CHECK(s.in_micro_step, "gradients of group '", s.group(group).spec.name,
              "' are asked for outside of a micro-step; open one with begin_micro_step()");
  s.reducer->open(s.group(group));
  return {*this, group};
}

MicroStep Engine::begin_micro_step() {
  State& s = *state_;
  s.check_usable("begin_micro_step");
  ZERO3_CHECK(!s.in_micro_step && !s.in_inference, "begin_micro_step while another pass is open");
  ZERO3_CHECK(s.micro_steps_begun < s.options.micro_steps, "micro-step ", s.micro_steps_begun + 1,
              " of a step with ", s.options.micro_steps,
              " is begun; raise EngineOptions::micro_steps or call step()");
  s.gatherer->follow(&s.training_plan);
  s.reducer->begin_micro_step(s.micro_steps_begun++);
  s.in_micro_step = true;
  s.loss_reported = false;
  return MicroStep(*this);
}

InferencePass Engine::begin_inference() {
  State& s = *state_;
  s.check_usable("begin_inference");
  ZERO3_CHECK(!s.in_micro_step && !s.in_inference, "begin_inference while another pass is open");
  s.gatherer->follow(&s.inference_plan);
  s.in_inference = true;
  return InferencePass(*this);
}

void Engine::State::end_micro_step() {
  in_micro_step = false;
  if (poisoned) return;
  try {
    training_plan.end();
    gatherer->follow(nullptr);
    reducer->end_micro_step();
  } catch (...) {
    poisoned = true;
    throw;
  }
}

StepResult Engine::step(const StepOptions& step_options) {
  State& s = *state_;
  if (s.pending) std::rethrow_exception(std::exchange(s.pending, nullptr));
  s.check_usable("step");
  ZERO3_CHECK(!s.in_micro_step && !s.in_inference, "step() while a pass is open; end it first");
  ZERO3_CHECK(s.micro_steps_begun == s.options.micro_steps, "step() after ", s.micro_steps_begun,
              " of ", s.options.micro_steps, " micro-steps");
  ZERO3_CHECK(std::isfinite(step_options.learning_rate), "step() with the learning rate ",
              step_options.learning_rate);
  ZERO3_CHECK(step_options.divisor.value_or(1.0) > 0, "step() with the divisor ",
              step_options.divisor.value_or(1.0), "; give a positive number of tokens or rows");
  s.gatherer->check_none_held("step()");
  s.reducer->finish();
  // Blocks until all that is enqueued on the gather stream has run. So no rank reads masters any
  // more when the update below changes them: a gather ends when every rank has read its part.
  const StepSums sums = s.norm->finish_step(s.tokens);
  const double divisor =
      step_options.divisor.value_or(sums.tokens > 0 ? static_cast<double>(sums.tokens) : 1.0);
  const double unscale = 1.0 / (divisor * static_cast<double>(s.options.loss_scale));
  StepResult result;
  result.loss_sum = sums.loss_sum;
  result.tokens = sums.tokens;
  result.grad_norm = std::sqrt(sums.squares) * unscale;
  if (std::isfinite(sums.squares)) {
    const double factor = unscale * clip_factor(result.grad_norm, s.options.clip);
    s.optimizer->step(step_options.learning_rate, factor, sums.used);
    s.gatherer->weights_changed();
    ++s.steps_applied;
    result.applied = true;
  } else {
    result.first_bad_parameter = sums.first_bad_parameter;
    result.reason = concat("the gradient of '", sums.first_bad_parameter,
                           "' is not finite; the step was skipped");
  }
  s.begin_next_step();
  return result;
}

void Engine::State::begin_next_step() {
  micro_steps_begun = 0;
  tokens = 0;
  for (ParamGroup& group : groups) group.used_in_step = false;
  norm->begin_step();
}

void Engine::reset() {
  State& s = *state_;
  ZERO3_CHECK(s.built, "reset before build()");
  // A communicator that failed will say so again below.
  s.drain();
  ++s.epoch;
  s.reducer->drop_all();
  s.gatherer->drop_all();
  s.gatherer->follow(nullptr);
  s.pending = nullptr;
  s.poisoned = false;
  s.in_micro_step = s.in_inference = false;
  s.begin_next_step();
  s.communicator.barrier("reset", *s.gather);
  synchronize();
}

void Engine::synchronize() {
  for (Stream* stream : {state_->compute.get(), state_->gather.get(), state_->reduce.get()})
    stream->synchronize();
}

int Engine::rank() const {
  return state_->communicator.rank();
}
int Engine::world_size() const {
  return state_->communicator.world_size();
}
const EngineOptions& Engine::options() const {
  return state_->options;
}
std::int64_t Engine::steps_applied() const {
  return state_->steps_applied;
}
std::span<const GroupSpec> Engine::groups() const {
  return state_->specs;
}

Elements Engine::parameter_count() const {
  Elements count;
  for (const ParamGroup& group : state_->groups) count += group.size();
  return count;
}

CommCounters Engine::comm_counters() const {
  CommCounters counters = state_->communicator.counters();
  if (state_->reduce_communicator == nullptr) return counters;
  const CommCounters reduced = state_->reduce_communicator->counters();
  for (std::size_t i = 0; i < kCollectiveOpCount; ++i) {
    counters.by_op[i].count += reduced.by_op[i].count;
    counters.by_op[i].bytes += reduced.by_op[i].bytes;
  }
  return counters;
}

}  // namespace zero3
