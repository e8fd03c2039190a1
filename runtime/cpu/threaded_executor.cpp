#include <memory>
#include <system_error>
#include <utility>

#include <zero3/error.h>
#include "cpu/cpu_stream.h"

namespace zero3::internal {
namespace {

class ThreadedExecutor final : public Executor {
 public:
  void attach(Queue& queue) override {
    try {
      queue.worker = std::jthread([&queue] { work(queue); });
    } catch (const std::system_error& error) {
      throw DeviceError(concat("stream '", queue.name, "' gets no thread: ", error.what()));
    }
  }

  void detach(Queue& queue) noexcept override {
    {
      const std::scoped_lock lock(queue.mutex);
      queue.stop = true;
    }
    queue.changed.notify_all();
    queue.worker.join();
  }

  void submit(Queue& queue, CpuTask task) override { queue.push(std::move(task)); }
  void host_wait(Gate& gate) override { gate.wait(); }
  void host_poll(Gate&) override {}
  bool runs_by_itself() const override { return true; }

 private:
  static void work(Queue& queue) {
    for (;;) {
      // Gone before the next one starts: what a task holds is released in stream order.
      CpuTask task;
      {
        std::unique_lock lock(queue.mutex);
        queue.changed.wait(lock, [&] { return queue.stop || !queue.tasks.empty(); });
        if (queue.tasks.empty()) return;
        task = std::move(queue.tasks.front());
        queue.tasks.pop_front();
      }
      std::exception_ptr gate_error;
      if (task.gate != nullptr) {
        try {
          task.gate->wait();
        } catch (...) {
          gate_error = std::current_exception();
        }
      }
      queue.run(task, std::move(gate_error));
    }
  }
};

}  // namespace

std::unique_ptr<Executor> make_threaded_executor() {
  return std::make_unique<ThreadedExecutor>();
}

}  // namespace zero3::internal
