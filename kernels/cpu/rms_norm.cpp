#include <cmath>

#include "cpu/kernels.h"
#include "cpu/lanes.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {
namespace {

/// Rows that one thread takes in the backward pass. A granule's sum for the weight is the sum of
/// its chunks' sums, in order; it does not depend on who computed them.
constexpr std::int64_t kChunkRows = 32;

std::int64_t chunks_per_granule(const RmsNormShape& shape) {
  return div_ceil(shape.granule_rows, kChunkRows);
}

template <class T, class W>
void forward_row(T* y, float* rstd, const T* x, const W* weight, std::int64_t width, float eps) {
  const float squares = lane_sum(width, [=](std::int64_t i) {
    const auto value = static_cast<float>(x[i]);
    return value * value;
  });
  const float r = 1.0F / std::sqrt(squares / static_cast<float>(width) + eps);
  *rstd = r;
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    store(y + i, static_cast<float>(x[i]) * r * static_cast<float>(weight[i]));
  }
}

template <class Dx, class Dy, class X, class W>
struct Backward {
  Dx* dx;
  const Dy* dy;
  const X* x;
  const float* rstd;
  const W* weight;
  std::int64_t width;
  Into into;

  /// sum += dy · x · rstd of the row.
  void weight_row(float* sum, std::int64_t row) const {
    const Dy* d = dy + row * width;
    const X* v = x + row * width;
    const float r = rstd[row];
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) {
      sum[i] += static_cast<float>(d[i]) * (static_cast<float>(v[i]) * r);
    }
  }

  /// dx = rstd · (g − x · rstd² · mean(g · x)) with g = dy · weight.
  void input_row(std::int64_t row) const {
    Dx* out = dx + row * width;
    const Dy* d = dy + row * width;
    const X* v = x + row * width;
    const W* w = weight;
    const float r = rstd[row];
    const float dot = lane_sum(width, [=](std::int64_t i) {
      return static_cast<float>(d[i]) * static_cast<float>(w[i]) * static_cast<float>(v[i]);
    });
    const float pull = r * r * (dot / static_cast<float>(width));
    const auto gradient = [=](std::int64_t i) {
      const float g = static_cast<float>(d[i]) * static_cast<float>(w[i]);
      return r * (g - static_cast<float>(v[i]) * pull);
    };
    if (into == Into::kReplace) {
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) store(out + i, gradient(i));
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) {
        store(out + i, static_cast<float>(out[i]) + gradient(i));
      }
    }
  }

  /// The rows [begin, end); their weight gradient is left in `sum` unless that is null.
  void chunk(float* sum, std::int64_t begin, std::int64_t end) const {
    if (sum != nullptr) std::fill(sum, sum + width, 0.0F);
    for (std::int64_t row = begin; row < end; ++row) {
      // First, because dx may be dy.
      if (sum != nullptr) weight_row(sum, row);
      input_row(row);
    }
  }
};

/// dweight += the sum of the `chunks` rows of `sums`, which is left in the first of them.
void add_granule(float* dweight, float* sums, std::int64_t chunks, std::int64_t width) {
  parallel_for(width, 4096, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
      const float* sum = sums + chunk * width;
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) sums[i] += sum[i];
    }
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) dweight[i] += sums[i];
  });
}

/// Chunks of as many granules as `slots` has room for at once; then their sums, in order.
template <class B>
void backward_with_weight(const B& b, float* dweight, float* slots, std::int64_t slot_count,
                          const RmsNormShape& shape) {
  const std::int64_t chunks = chunks_per_granule(shape);
  const std::int64_t at_once = slot_count / chunks;
  const std::int64_t granules = div_ceil(shape.rows, shape.granule_rows);
  for (std::int64_t first = 0; first < granules; first += at_once) {
    const std::int64_t last = std::min(granules, first + at_once);
    parallel_tasks((last - first) * chunks, [&](std::int64_t slot, int) {
      const std::int64_t granule_begin = (first + slot / chunks) * shape.granule_rows;
      const std::int64_t granule_end = std::min(shape.rows, granule_begin + shape.granule_rows);
      const std::int64_t begin = std::min(granule_end, granule_begin + slot % chunks * kChunkRows);
      b.chunk(slots + slot * shape.width, begin, std::min(granule_end, begin + kChunkRows));
    });
    for (std::int64_t granule = first; granule < last; ++granule) {
      const std::int64_t rows =
          std::min(shape.granule_rows, shape.rows - granule * shape.granule_rows);
      add_granule(dweight, slots + (granule - first) * chunks * shape.width,
                  div_ceil(rows, kChunkRows), shape.width);
    }
  }
}

}  // namespace

void rms_norm_forward(TensorView y, TensorView rstd, TensorView x, TensorView weight,
                      const RmsNormShape& shape, Stream& stream) {
  auto* r = internal::native<float>(rstd);
  visit<float, BFloat16>(x, [&]<class T>(T* from) {
    auto* to = internal::native<T>(y);
    visit<float, BFloat16>(weight, [&](const auto* w) {
      enqueue(stream, "rms_norm_forward", {y, rstd}, {x, weight}, [=] {
        parallel_for(shape.rows, rows_per_grain(shape.width),
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t row = begin; row < end; ++row) {
                         const std::int64_t at = row * shape.width;
                         forward_row(to + at, r + row, from + at, w, shape.width, shape.eps);
                       }
                     });
      });
    });
  });
}

void rms_norm_backward(TensorView dx, TensorView dweight, TensorView dy, TensorView x,
                       TensorView rstd, TensorView weight, const RmsNormShape& shape, Into into,
                       TensorView workspace, Stream& stream) {
  const std::int64_t slot_count =
      dweight.empty() ? 0 : workspace.bytes().count() / (4 * shape.width);
  ZERO3_CHECK(dweight.empty() || slot_count >= chunks_per_granule(shape),
              "rms_norm_backward: workspace has ", workspace.bytes(), " where at least ",
              cpu::rms_norm_workspace_bytes(shape, 1), " are needed");
  const auto run = [&](const auto& b) {
    auto* weight_sum = internal::native<float>(dweight);
    auto* slots = static_cast<float*>(internal::native_data(workspace));
    const auto task = [=] {
      if (weight_sum != nullptr) {
        backward_with_weight(b, weight_sum, slots, slot_count, shape);
      } else {
        parallel_for(shape.rows, kChunkRows,
                     [&](std::int64_t begin, std::int64_t end) { b.chunk(nullptr, begin, end); });
      }
    };
    const TensorView replaced = into == Into::kReplace ? dx : TensorView();
    const TensorView scratch = dweight.empty() ? TensorView() : workspace;
    enqueue(stream, "rms_norm_backward", {replaced, scratch}, {dy, x, rstd, weight}, task);
  };
  visit<float, BFloat16>(dx, [&]<class Dx>(Dx* out) {
    visit<float, BFloat16>(dy, [&]<class Dy>(Dy* d) {
      visit<float, BFloat16>(x, [&]<class X>(X* v) {
        visit<float, BFloat16>(weight, [&]<class W>(W* w) {
          run(Backward<Dx, Dy, X, W>{out, d, v, internal::native<float>(rstd), w, shape.width,
                                     into});
        });
      });
    });
  });
}

Bytes rms_norm_workspace_bytes(const RmsNormShape& shape, int threads) {
  const std::int64_t chunks = chunks_per_granule(shape);
  const std::int64_t granules = std::max<std::int64_t>(1, div_ceil(threads, chunks));
  return Bytes(granules * chunks * shape.width * 4);
}

}  // namespace zero3::cpu
