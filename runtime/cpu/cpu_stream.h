#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <zero3/internal/cpu_stream.h>
#include "cpu/cpu_device.h"

namespace zero3 {

/// The tasks of one stream, in order, with the stream's error. The executor decides when a task
/// runs.
class internal::Executor::Queue {
 public:
  Queue(StreamOptions options, std::uint64_t stream_id, Trace* spans, int device_rank)
      : name(std::move(options.name)),
        threads(options.threads),
        id(stream_id),
        trace(spans),
        rank(device_rank) {}

  void push(CpuTask task);
  /// Runs a task whose gate has opened (`gate_error`: what its gate threw), or skips it if the
  /// stream has failed.
  void run(CpuTask& task, std::exception_ptr gate_error);
  /// The stream's first error, cleared by this call.
  [[nodiscard]] std::exception_ptr take_error();
  [[nodiscard]] bool failed() const;

  const std::string name;
  const int threads;
  const std::uint64_t id;
  Trace* const trace;
  const int rank;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<CpuTask> tasks;  ///< guarded by mutex
  bool stop = false;          ///< guarded by mutex
  bool spoiled = false;       ///< the stepped executor's: outputs of the head have been filled
  std::jthread worker;        ///< the threaded executor's

 private:
  std::exception_ptr error_;  ///< guarded by mutex
};

namespace cpu {

/// A point in a CPU stream.
class CpuEvent final : public EventState, public internal::Gate {
 public:
  CpuEvent(std::string stream_name, internal::Executor& executor)
      : stream_name_(std::move(stream_name)), executor_(executor) {}

  void pass(std::exception_ptr error);
  [[nodiscard]] std::exception_ptr error() const;
  /// Alive at least until the point has passed.
  [[nodiscard]] const internal::Executor& executor() const { return executor_; }
  [[nodiscard]] const std::string& stream_name() const { return stream_name_; }

  [[nodiscard]] bool complete() override;
  void synchronize() override;
  [[nodiscard]] bool open() override;
  void wait() override;
  [[nodiscard]] std::string describe() const override {
    return "a point of stream '" + stream_name_ + "'";
  }

 private:
  std::string stream_name_;
  internal::Executor& executor_;
  mutable std::mutex mutex_;
  std::condition_variable passed_;
  bool done_ = false;
  std::exception_ptr error_;
};

class CpuStream final : public Stream {
 public:
  CpuStream(CpuDevice& device, internal::Executor& executor, StreamOptions options,
            std::uint64_t id);
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;
  ~CpuStream() override;

  [[nodiscard]] Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;
  void call(std::string_view name, std::function<void()> function) override;
  [[nodiscard]] Device& device() const override { return device_; }
  [[nodiscard]] const std::string& name() const override { return queue_.name; }
  [[nodiscard]] std::uint64_t id() const override { return queue_.id; }

  void push(internal::CpuTask task);

 private:
  CpuDevice& device_;
  internal::Executor& executor_;
  internal::Executor::Queue queue_;
};

}  // namespace cpu
}  // namespace zero3
