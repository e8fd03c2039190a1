#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string_view>
#include <thread>

#include <zero3/mpi_world.h>
#include "mpi/mpi_messages.h"
#include "process/process_world.h"

namespace zero3::mpi {

/// The one thread of this process that calls MPI: brings the ranks together, carries their
/// messages, looks after them, and ends with MPI_Finalize or MPI_Abort.
class MpiThread {
 public:
  MpiThread(const Launch& launch, MpiOptions options);
  ~MpiThread() = default;
  MpiThread(const MpiThread&) = delete;
  MpiThread& operator=(const MpiThread&) = delete;

  /// Waits for the other ranks to end as well and deletes it. After a failure of the world the
  /// process is ended, here or, where an exception unwinds the caller, soon after: what the caller
  /// has to say about it comes first.
  static void end(MpiThread* thread) noexcept;

  /// Valid until the end begins.
  [[nodiscard]] process::ProcessWorld& world() { return *world_; }

 private:
  void run(const Launch& launch, std::promise<void>& ready);
  void begin(const Launch& launch);
  void look_after();
  void carry();
  [[noreturn]] void end_process();
  void tell(const std::function<void(std::string_view)>& listener, std::string_view message) const;

  MpiOptions options_;
  int rank_ = 0;
  std::unique_ptr<MpiMessages> messages_;  ///< null: no rank is far
  std::unique_ptr<process::ProcessWorld> world_;
  std::atomic<bool> ending_ = false, unwinding_ = false;
  std::thread thread_;
};

}  // namespace zero3::mpi
