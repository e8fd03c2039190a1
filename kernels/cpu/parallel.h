#pragma once

#include <algorithm>
#include <cstdint>

namespace zero3::cpu {

/// Calls `body(context, task, thread)` for every task in [0, tasks), on as many threads as the
/// running stream may use (thread in [0, that)); returns when all are done. The only place that
/// uses OpenMP. With one thread the calls are made by the caller, in order. An exception is
/// rethrown after all threads are done.
void run_tasks(std::int64_t tasks, void (*body)(void* context, std::int64_t task, int thread),
               void* context);

/// f(task, thread) for every task in [0, tasks). Which thread takes a task is not fixed, so a
/// result must not depend on it.
template <class F>
void parallel_tasks(std::int64_t tasks, F&& f) {
  run_tasks(
      tasks,
      [](void* context, std::int64_t task, int thread) {
        (*static_cast<F*>(context))(task, thread);
      },
      &f);
}

/// f(begin, end) over [0, n) in pieces of `grain` (the last may be short).
template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, F&& f) {
  parallel_tasks((n + grain - 1) / grain,
                 [&](std::int64_t task, int) { f(task * grain, std::min(n, (task + 1) * grain)); });
}

/// While it lives, libraries that use OpenMP take that many threads when this thread calls them.
class LibraryThreads {
 public:
  explicit LibraryThreads(int threads);
  ~LibraryThreads();
  LibraryThreads(const LibraryThreads&) = delete;
  LibraryThreads& operator=(const LibraryThreads&) = delete;

 private:
  int outer_;
};

}  // namespace zero3::cpu
