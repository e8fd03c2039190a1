#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace zero3 {

class Device;

/// The state behind an Event; backends derive from it.
class EventState {
 public:
  EventState() = default;
  virtual ~EventState() = default;
  EventState(const EventState&) = delete;
  EventState& operator=(const EventState&) = delete;
  /// True once the point has passed. Never blocks.
  [[nodiscard]] virtual bool complete() = 0;
  /// Blocks the calling host thread until the point has passed; rethrows the error of an operation
  /// before it.
  virtual void synchronize() = 0;
};

/// A point in a stream; a cheap value. A default-constructed event is a point that has always
/// passed.
class Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<EventState> state) : state_(std::move(state)) {}

  [[nodiscard]] bool complete() const { return state_ == nullptr || state_->complete(); }
  void synchronize() const {
    if (state_ != nullptr) state_->synchronize();
  }
  /// The same point for order alone: a stream that waits for it takes over no error.
  [[nodiscard]] Event order_only() const {
    Event event(state_);
    event.carries_error_ = false;
    return event;
  }
  [[nodiscard]] bool carries_error() const { return carries_error_; }
  [[nodiscard]] const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_;
  bool carries_error_ = true;
};

/// An ordered queue of operations on one device. Operations of one stream run one after another, in
/// the order of enqueueing; those of two streams in any order that `wait` does not forbid.
///
/// Enqueueing never waits for the device. One host thread enqueues at a time. An operation that
/// throws makes the stream skip what follows; the first error is rethrown by `synchronize`, and
/// travels to the streams that wait for a later point of this one.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// The point after everything enqueued so far.
  [[nodiscard]] virtual Event record() = 0;
  /// What is enqueued from now on runs after the event's point. An event of any device of this
  /// process that the same kind of executor runs; throws UsageError for others.
  virtual void wait(const Event& event) = 0;
  /// Blocks until everything enqueued so far has run. Rethrows the stream's first error and clears
  /// it.
  virtual void synchronize() = 0;

  /// Enqueues a call of `function` by the device's own host thread. The function may read and write
  /// what the stream's order makes safe; it must not enqueue, nor wait for a stream.
  virtual void call(std::string_view name, std::function<void()> function) = 0;

  [[nodiscard]] virtual Device& device() const = 0;
  [[nodiscard]] virtual const std::string& name() const = 0;
  /// Unique within the device.
  [[nodiscard]] virtual std::uint64_t id() const = 0;
  /// The backend's own stream, under any decorator.
  [[nodiscard]] virtual Stream& native() { return *this; }

 protected:
  Stream() = default;
};

}  // namespace zero3
