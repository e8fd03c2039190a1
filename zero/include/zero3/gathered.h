#pragma once

#include <cstdint>
#include <utility>

#include <zero3/param_spec.h>
#include <zero3/tensor_view.h>

namespace zero3 {

class Engine;

/// Full parameters of one group, on the engine's compute stream. Valid until destroyed; destruction
/// releases them in stream order and never throws; views taken from it are dead after that. To be
/// destroyed by the thread that made it; one that shares the group with the thread that gathered it
/// ends first. Movable, not copyable.
class Gathered {
 public:
  Gathered(Gathered&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)),
        group_(other.group_),
        epoch_(other.epoch_) {}
  Gathered& operator=(Gathered&&) = delete;
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;
  ~Gathered();

  /// Parameter `index` of the group's spec, in its gathered dtype, row-major.
  [[nodiscard]] TensorView operator[](int index) const;
  [[nodiscard]] GroupId group() const { return group_; }

 private:
  friend class Engine;
  Gathered(Engine& engine, GroupId group);

  Engine* engine_;
  GroupId group_;
  std::int64_t epoch_;  ///< of the engine: handles from before a reset() do nothing
};

/// Full fp32 gradients of one group in this micro-step, to be added to on the compute stream; zero
/// before the first use. Destruction counts one use; after the last of GroupSpec::uses views taken
/// from it are dead, and the reduction starts, behind what follows. Destruction by an exception
/// counts nothing and makes the step unusable until Engine::reset(). Movable, not copyable.
class Gradients {
 public:
  Gradients(Gradients&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)),
        group_(other.group_),
        epoch_(other.epoch_),
        exceptions_(other.exceptions_) {}
  Gradients& operator=(Gradients&&) = delete;
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;
  ~Gradients();

  /// Gradient of parameter `index` of the group's spec; an empty view if it is frozen.
  [[nodiscard]] TensorView operator[](int index) const;

 private:
  friend class Engine;
  Gradients(Engine& engine, GroupId group);

  Engine* engine_;
  GroupId group_;
  std::int64_t epoch_;
  int exceptions_;
};

/// One pass over a micro-batch, forward and backward. Ends by end(), or by destruction (what end()
/// would throw is then thrown by step()). Destruction by an exception makes the step unusable until
/// Engine::reset().
class MicroStep {
 public:
  MicroStep(MicroStep&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)),
        epoch_(other.epoch_),
        exceptions_(other.exceptions_) {}
  MicroStep& operator=(MicroStep&&) = delete;
  MicroStep(const MicroStep&) = delete;
  MicroStep& operator=(const MicroStep&) = delete;
  ~MicroStep();

  /// Adds this micro-batch's loss sum (fp64, one element on the device, read in compute-stream
  /// order) and the number of tokens that it sums over to the step's. At most once per micro-step.
  void report(TensorView loss_sum, std::int64_t tokens);
  /// Reduces the groups that were used less often than their spec says, as they are, or as zeros.
  /// Throws UsageError for gradients that are still held.
  void end();

 private:
  friend class Engine;
  explicit MicroStep(Engine& engine);

  Engine* engine_;
  std::int64_t epoch_;
  int exceptions_;
};

/// A forward without a backward, such as an evaluation: gathers are prefetched in the order that
/// the last one had. Its end lets go of what was on its way, wherever the forward stopped.
class InferencePass {
 public:
  InferencePass(InferencePass&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)), epoch_(other.epoch_) {}
  InferencePass& operator=(InferencePass&&) = delete;
  InferencePass(const InferencePass&) = delete;
  InferencePass& operator=(const InferencePass&) = delete;
  ~InferencePass();

 private:
  friend class Engine;
  explicit InferencePass(Engine& engine);

  Engine* engine_;
  std::int64_t epoch_;
};

}  // namespace zero3
