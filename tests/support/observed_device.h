#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include <zero3/device.h>

namespace zero3::test {

/// Is told of every call on the streams of an ObservedDevice. Thread-safe where several host
/// threads use it.
class StreamObserver {
 public:
  virtual ~StreamObserver() = default;
  /// An operation is about to be enqueued.
  virtual void operates(const Stream&) {}
  virtual void recorded(const Stream&, const Event&) {}
  /// False: the wait is not made.
  [[nodiscard]] virtual bool waits(const Stream&, const Event&) { return true; }
  virtual void synchronized(const Stream&) {}
};

class ObservedStream final : public Stream {
 public:
  ObservedStream(std::unique_ptr<Stream> inner, StreamObserver& observer)
      : inner_(std::move(inner)), observer_(observer) {}

  [[nodiscard]] Event record() override {
    Event event = inner_->record();
    observer_.recorded(*inner_, event);
    return event;
  }
  void wait(const Event& event) override {
    if (observer_.waits(*inner_, event)) inner_->wait(event);
  }
  void synchronize() override {
    inner_->synchronize();
    observer_.synchronized(*inner_);
  }
  void call(std::string_view name, std::function<void()> function) override {
    observer_.operates(*inner_);
    inner_->call(name, std::move(function));
  }
  [[nodiscard]] Device& device() const override { return inner_->device(); }
  [[nodiscard]] const std::string& name() const override { return inner_->name(); }
  [[nodiscard]] std::uint64_t id() const override { return inner_->id(); }
  /// Asked for by whoever enqueues an operation.
  [[nodiscard]] Stream& native() override {
    observer_.operates(*inner_);
    return inner_->native();
  }

 private:
  std::unique_ptr<Stream> inner_;
  StreamObserver& observer_;
};

/// Hands out streams that tell an observer of their calls, and for the rest is the inner device. A
/// stream's device() is the inner one, so views and buffers are those of the inner device.
class ObservedDevice : public Device {
 public:
  ObservedDevice(std::unique_ptr<Device> inner, StreamObserver& observer)
      : inner_(std::move(inner)), observer_(observer) {}

  [[nodiscard]] DeviceKind kind() const override { return inner_->kind(); }
  [[nodiscard]] int ordinal() const override { return inner_->ordinal(); }
  [[nodiscard]] int threads() const override { return inner_->threads(); }
  [[nodiscard]] std::unique_ptr<Stream> make_stream(StreamOptions options) override {
    return std::make_unique<ObservedStream>(inner_->make_stream(std::move(options)), observer_);
  }
  [[nodiscard]] MemoryResource& memory() override { return inner_->memory(); }
  [[nodiscard]] StatsResource& stats() override { return inner_->stats(); }
  [[nodiscard]] LimitResource& limit() override { return inner_->limit(); }
  [[nodiscard]] PoolResource& pool() override { return inner_->pool(); }
  [[nodiscard]] BlockTable& blocks() override { return inner_->blocks(); }

 private:
  std::unique_ptr<Device> inner_;
  StreamObserver& observer_;
};

}  // namespace zero3::test
