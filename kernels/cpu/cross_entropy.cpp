#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "common/exp_nonpositive.h"
#include "cpu/kernels.h"
#include "cpu/lanes.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {
namespace {

/// Exponentials that are summed in fp32 before double takes over; 4 KiB of them stay in the first
/// cache in between.
constexpr std::int64_t kBlock = 1024;

/// Before anything is written, so that the row named is the first one whatever the threads do.
void check_targets(const std::int32_t* targets, const CrossEntropyShape& shape) {
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const std::int32_t target = targets[row];
    ZERO3_CHECK(target == shape.ignore_index || (target >= 0 && target < shape.vocab),
                "cross_entropy: row ", row, " has target ", target, "; valid are 0 to ",
                shape.vocab - 1, ", and ", shape.ignore_index, " for rows to leave out");
  }
}

/// Σ exp(x[i] − largest).
double exp_sum(const float* x, std::int64_t n, float largest) {
  double sum = 0;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    sum += static_cast<double>(lane_sum(
        std::min(kBlock, n - begin),
        [=, block = x + begin](std::int64_t i) { return exp_nonpositive(block[i] - largest); }));
  }
  return sum;
}

/// The same sum; the terms are left in `e`, which may be x.
double exp_and_sum(float* e, const float* x, std::int64_t n, float largest) {
  double sum = 0;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, n - begin);
    float* block = e + begin;
    const float* from = x + begin;
#pragma omp simd
    for (std::int64_t i = 0; i < size; ++i) block[i] = exp_nonpositive(from[i] - largest);
    sum += static_cast<double>(lane_sum(size, [=](std::int64_t i) { return block[i]; }));
  }
  return sum;
}

double loss_of(float target_logit, float largest, double sum) {
  return std::log(sum) + (static_cast<double>(largest) - static_cast<double>(target_logit));
}

/// One row's loss and gradient. `e` has room for the row's exponentials and may be `d` or x.
template <class T>
double row_with_gradient(T* d, float* e, const float* x, std::int64_t target,
                         const CrossEntropyShape& shape) {
  const float target_logit = x[target];
  const float largest = lane_max(x, shape.vocab);
  const double sum = exp_and_sum(e, x, shape.vocab, largest);
  const double scale = static_cast<double>(shape.scale) / sum;
  const double at_target =
      static_cast<double>(e[target]) * scale - static_cast<double>(shape.scale);
  const auto factor = static_cast<float>(scale);
#pragma omp simd
  for (std::int64_t i = 0; i < shape.vocab; ++i) store(d + i, e[i] * factor);
  store(d + target, static_cast<float>(at_target));
  return loss_of(target_logit, largest, sum);
}

struct Rows {
  double* loss;
  const float* logits;
  const std::int32_t* targets;
  CrossEntropyShape shape;

  template <class F>
  void for_each(F&& f) const {
    const std::int64_t grain = rows_per_grain(shape.vocab);
    parallel_tasks(div_ceil(shape.rows, grain), [&](std::int64_t task, int thread) {
      const std::int64_t end = std::min(shape.rows, (task + 1) * grain);
      for (std::int64_t row = task * grain; row < end; ++row) f(row, thread);
    });
  }

  void losses() const {
    for_each([this](std::int64_t row, int) {
      const float* x = logits + row * shape.vocab;
      loss[row] = 0.0;
      if (targets[row] == shape.ignore_index) return;
      const float largest = lane_max(x, shape.vocab);
      loss[row] = loss_of(x[targets[row]], largest, exp_sum(x, shape.vocab, largest));
    });
  }

  template <class T>
  void losses_and_gradients(T* d_logits) const {
    // A narrow gradient cannot hold the exponentials on their way: one row of them per thread can,
    // which stays in the second cache and is cheaper than computing them twice.
    std::vector<float> scratch;
    if constexpr (!std::is_same_v<T, float>) {
      scratch.resize(static_cast<std::size_t>(internal::current_threads() * shape.vocab));
    }
    for_each([&](std::int64_t row, int thread) {
      T* d = d_logits + row * shape.vocab;
      loss[row] = 0.0;
      if (targets[row] == shape.ignore_index) {
        std::fill(d, d + shape.vocab, T{});
        return;
      }
      float* e = [&] {
        if constexpr (std::is_same_v<T, float>) {
          return d;
        } else {
          return scratch.data() + thread * shape.vocab;
        }
      }();
      loss[row] = row_with_gradient(d, e, logits + row * shape.vocab, targets[row], shape);
    });
  }
};

}  // namespace

void cross_entropy(TensorView row_loss, TensorView d_logits, TensorView logits, TensorView targets,
                   const CrossEntropyShape& shape, Stream& stream) {
  const Rows rows = {internal::native<double>(row_loss), internal::native<float>(logits),
                     internal::native<std::int32_t>(targets), shape};
  if (d_logits.empty()) {
    enqueue(stream, "cross_entropy", {row_loss}, {logits, targets}, [=] {
      check_targets(rows.targets, shape);
      rows.losses();
    });
    return;
  }
  visit<float, BFloat16>(d_logits, [&](auto* d) {
    enqueue(stream, "cross_entropy", {row_loss, d_logits}, {logits, targets}, [=] {
      check_targets(rows.targets, shape);
      rows.losses_and_gradients(d);
    });
  });
}

}  // namespace zero3::cpu
