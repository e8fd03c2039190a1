#include "cpu/cpu_stream.h"

#include <algorithm>
#include <utility>

#include <zero3/error.h>
#include <zero3/trace.h>

namespace zero3 {
namespace {

constexpr int kNoTask = 0;
thread_local int running_task_threads = kNoTask;

void check_no_task(const char* does, const std::string& stream) {
  ZERO3_CHECK(running_task_threads == kNoTask, "an operation ", does, " stream '", stream,
              "' while it runs; only host threads may");
}

}  // namespace

void internal::Executor::Queue::push(CpuTask task) {
  {
    const std::scoped_lock lock(mutex);
    tasks.push_back(std::move(task));
  }
  changed.notify_all();
}

void internal::Executor::Queue::run(CpuTask& task, std::exception_ptr gate_error) {
  std::exception_ptr error;
  {
    const std::scoped_lock lock(mutex);
    if (error_ == nullptr) error_ = std::move(gate_error);
    error = error_;
  }
  const bool traced = trace != nullptr && !task.silent && error == nullptr;
  const std::int64_t begin = traced ? Trace::now_ns() : 0;
  running_task_threads = threads;
  try {
    if (error != nullptr) {
      if (task.skipped) task.skipped(std::move(error));
    } else if (task.run) {
      task.run();
    }
    if (traced) trace->add({rank, name, task.name, begin, Trace::now_ns(), id});
  } catch (...) {
    const std::scoped_lock lock(mutex);
    if (error_ == nullptr) error_ = std::current_exception();
  }
  running_task_threads = kNoTask;
}

std::exception_ptr internal::Executor::Queue::take_error() {
  const std::scoped_lock lock(mutex);
  return std::exchange(error_, nullptr);
}

bool internal::Executor::Queue::failed() const {
  const std::scoped_lock lock(mutex);
  return error_ != nullptr;
}

namespace cpu {

void CpuEvent::pass(std::exception_ptr error) {
  {
    const std::scoped_lock lock(mutex_);
    done_ = true;
    error_ = std::move(error);
  }
  passed_.notify_all();
}

std::exception_ptr CpuEvent::error() const {
  const std::scoped_lock lock(mutex_);
  return error_;
}

bool CpuEvent::complete() {
  if (open()) return true;
  if (running_task_threads == kNoTask) executor_.host_poll(*this);
  return open();
}

void CpuEvent::synchronize() {
  // A point that has passed may have outlived its executor.
  if (!open()) {
    check_no_task("waits for a point of", stream_name_);
    executor_.host_wait(*this);
  }
  if (const std::exception_ptr failure = error()) std::rethrow_exception(failure);
}

bool CpuEvent::open() {
  const std::scoped_lock lock(mutex_);
  return done_;
}

void CpuEvent::wait() {
  std::unique_lock lock(mutex_);
  passed_.wait(lock, [this] { return done_; });
}

CpuStream::CpuStream(CpuDevice& device, internal::Executor& executor, StreamOptions options,
                     std::uint64_t id)
    : device_(device),
      executor_(executor),
      queue_(std::move(options), id, device.trace(), device.rank()) {
  ZERO3_CHECK(queue_.threads >= 1, "stream '", queue_.name, "' with ", queue_.threads,
              " threads; give 1 or more");
  executor_.attach(queue_);
}

CpuStream::~CpuStream() {
  executor_.detach(queue_);
}

void CpuStream::push(internal::CpuTask task) {
  check_no_task("enqueues on", queue_.name);
  executor_.submit(queue_, std::move(task));
}

Event CpuStream::record() {
  auto event = std::make_shared<CpuEvent>(queue_.name, executor_);
  push({.name = "record",
        .run = [event] { event->pass(nullptr); },
        .skipped = [event](std::exception_ptr error) { event->pass(std::move(error)); },
        .silent = true});
  return Event(event);
}

void CpuStream::wait(const Event& event) {
  if (event.state() == nullptr) return;
  auto state = std::dynamic_pointer_cast<CpuEvent>(event.state());
  ZERO3_CHECK(state != nullptr, "stream '", queue_.name,
              "' of a CPU device waits for an event of another kind of device");
  ZERO3_CHECK(state->open() || &state->executor() == &executor_ ||
                  (executor_.runs_by_itself() && state->executor().runs_by_itself()),
              "stream '", queue_.name, "' waits for a point of stream '", state->stream_name(),
              "', but a stepped executor orders only its own streams; make both devices on one");
  internal::CpuTask task{.name = "wait", .run = nullptr, .gate = state, .silent = true};
  if (event.carries_error()) {
    task.run = [state] {
      if (const std::exception_ptr failure = state->error()) std::rethrow_exception(failure);
    };
  }
  push(std::move(task));
}

void CpuStream::synchronize() {
  const auto event = std::make_shared<CpuEvent>(queue_.name, executor_);
  push({.name = "synchronize",
        .run = [event] { event->pass(nullptr); },
        .skipped =
            [event](std::exception_ptr error) {
              error = nullptr;  // the host is the next to hold it, and the last
              event->pass(nullptr);
            },
        .silent = true});
  executor_.host_wait(*event);
  if (const std::exception_ptr error = queue_.take_error()) std::rethrow_exception(error);
}

void CpuStream::call(std::string_view name, std::function<void()> function) {
  push({.name = std::string(name), .run = std::move(function)});
}

}  // namespace cpu

namespace internal {

void enqueue(Stream& stream, CpuTask task) {
  auto* cpu_stream = dynamic_cast<cpu::CpuStream*>(&stream.native());
  ZERO3_CHECK(cpu_stream != nullptr, "task '", task.name, "' is for CPU streams; stream '",
              stream.name(), "' belongs to device '", name_of(stream.device().kind()), "'");
  cpu_stream->push(std::move(task));
}

void* native_data(const TensorView& view) {
  if (view.empty()) return nullptr;
  const auto* device = dynamic_cast<const cpu::CpuDevice*>(&view.device());
  ZERO3_CHECK(device != nullptr, "a view of device '", name_of(view.device().kind()),
              "' is used by a CPU stream");
  return static_cast<std::byte*>(view.data()) + device->native_offset();
}

Output output(const TensorView& view) {
  return {native_data(view), static_cast<std::size_t>(view.bytes().count())};
}

Bytes host_link(Stream& stream) {
  const auto* device = dynamic_cast<const cpu::CpuDevice*>(&stream.device());
  return device != nullptr ? device->host_link() : Bytes(0);
}

int current_threads() {
  return std::max(running_task_threads, 1);
}

}  // namespace internal
}  // namespace zero3
