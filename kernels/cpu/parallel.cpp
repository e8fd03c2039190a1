#include "cpu/parallel.h"

#include <omp.h>

#include <exception>
#include <mutex>

#include <zero3/internal/cpu_stream.h>

namespace zero3::cpu {

void run_tasks(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) {
  const int threads = static_cast<int>(std::min<std::int64_t>(internal::current_threads(), tasks));
  if (threads <= 1) {
    for (std::int64_t task = 0; task < tasks; ++task) body(context, task, 0);
    return;
  }
  std::exception_ptr first;
  std::mutex mutex;
  std::int64_t next = 0;
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    for (;;) {
      std::int64_t task = 0;
#pragma omp atomic capture
      task = next++;
      if (task >= tasks) break;
      try {
        body(context, task, thread);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (first == nullptr) first = std::current_exception();
      }
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

LibraryThreads::LibraryThreads(int threads) : outer_(omp_get_max_threads()) {
  omp_set_num_threads(threads);
}

LibraryThreads::~LibraryThreads() {
  omp_set_num_threads(outer_);
}

}  // namespace zero3::cpu
