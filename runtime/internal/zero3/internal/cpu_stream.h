#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <zero3/device.h>
#include <zero3/stream.h>
#include <zero3/tensor_view.h>

/// Work on the streams of CPU devices ("cpu" and "cpu:sim"), for the folders of this tree.
namespace zero3::internal {

/// Something that a stream's next operation may have to wait for. `open` is called by the stepped
/// executor and must not block; `wait` by the threaded one and returns once `open` is true. Either
/// may throw: the stream fails.
class Gate {
 public:
  virtual ~Gate() = default;
  [[nodiscard]] virtual bool open() = 0;
  virtual void wait() = 0;
  /// For deadlock reports: "event of stream 'gather'", "all_gather #12 of group 'block.3': rank 1
  /// absent".
  [[nodiscard]] virtual std::string describe() const = 0;
};

/// Bytes that an operation overwrites without reading them.
struct Output {
  void* data;
  std::size_t bytes;
};

struct CpuTask {
  /// Shown in traces and deadlock reports.
  std::string name;
  /// May be empty where the gate alone matters. Must not enqueue, nor wait for a stream.
  std::function<void()> run;
  /// Runs after this opens; null: at once.
  std::shared_ptr<Gate> gate = nullptr;
  /// The stepped executor fills these with NaN patterns some time before it runs the task, so that
  /// overlap with a reader is visible and not only a wrong order.
  std::vector<Output> outputs = {};
  /// Called in place of `run` when the stream has failed before (with its first error).
  std::function<void(std::exception_ptr)> skipped = nullptr;
  /// Left out of traces.
  bool silent = false;
};

/// Appends to a stream of a CPU device. Throws UsageError for a stream of another device.
void enqueue(Stream& stream, CpuTask task);

/// The address at which CPU tasks may touch a view's bytes: view.data() on "cpu"; its place in the
/// backing mapping on "cpu:sim", whose own addresses the host must not touch.
[[nodiscard]] void* native_data(const TensorView& view);
template <class T>
[[nodiscard]] T* native(const TensorView& view) {
  constexpr DType kWanted = kDTypeOf<std::remove_const_t<T>>;
  static_assert(sizeof(T) == static_cast<std::size_t>(size_of(kWanted)), "no dtype has this type");
  ZERO3_CHECK(view.empty() || view.dtype() == kWanted, "a view of ", view.dtype(), " is used as ",
              kWanted);
  return static_cast<T*>(native_data(view));
}
/// The view as an output of a task.
[[nodiscard]] Output output(const TensorView& view);

/// DeviceOptions::host_link of the stream's device, where it bounds copies.
[[nodiscard]] Bytes host_link(Stream& stream);

/// CPU threads that the running task may use (its stream's `threads`); 1 outside of a task.
[[nodiscard]] int current_threads();

/// Runs the operations of CPU streams. Outlives the devices that use it. A stream may wait for
/// points of streams of the same executor, or, where both run by themselves, of another one.
class Executor {
 public:
  class Queue;
  virtual ~Executor() = default;
  virtual void attach(Queue& queue) = 0;
  /// Runs what is left in the queue, then forgets it.
  virtual void detach(Queue& queue) noexcept = 0;
  virtual void submit(Queue& queue, CpuTask task) = 0;
  /// Blocks the calling host thread until the gate opens.
  virtual void host_wait(Gate& gate) = 0;
  /// The calling host thread found the gate closed and may ask again.
  virtual void host_poll(Gate& gate) = 0;
  /// Whether operations run while no host thread waits.
  [[nodiscard]] virtual bool runs_by_itself() const = 0;
};

/// One thread per stream.
[[nodiscard]] std::unique_ptr<Executor> make_threaded_executor();

/// One operation at a time, of all streams and host threads: at every point where more than one
/// thing can go on, the seed chooses. Any legal interleaving is reachable, and a failure replays
/// from its seed. "All wait and nothing can run" and "all only ask whether something is complete"
/// are deadlocks: a DeviceError with the heads of all streams, thrown by the wait of every host
/// thread. What a stream can never run is skipped, with that error, when the stream is destroyed.
///
/// Host threads take turns: a thread that uses devices of this executor holds a HostTurn while
/// others do as well, and waits for the others in no other way (that would keep the turn). With one
/// host thread none is needed. Use without the turn is a UsageError.
class SteppedExecutor : public Executor {
 public:
  /// Registers the calling thread; constructing blocks until it gets its turn, destruction passes
  /// the turn on. A set of `hosts` threads, with indices from 0 on, starts once every one of them
  /// has arrived and the set before has left. Throws UsageError for an index that is outside or
  /// taken, and where threads of a set give different sizes of it.
  class HostTurn {
   public:
    HostTurn(SteppedExecutor& executor, int index, int hosts);
    ~HostTurn();
    HostTurn(const HostTurn&) = delete;
    HostTurn& operator=(const HostTurn&) = delete;

   private:
    SteppedExecutor& executor_;
    int index_;
  };

  /// Decisions about streams so far: an operation is one, with outputs two.
  [[nodiscard]] virtual std::int64_t steps() const = 0;

 private:
  virtual void enter(int index, int hosts) = 0;
  virtual void leave(int index) = 0;
};
[[nodiscard]] std::unique_ptr<SteppedExecutor> make_stepped_executor(std::uint64_t seed);

/// make_device on a given executor (kCpu and kCpuSim).
[[nodiscard]] std::unique_ptr<Device> make_cpu_device(const DeviceOptions& options,
                                                      Executor& executor);

}  // namespace zero3::internal
