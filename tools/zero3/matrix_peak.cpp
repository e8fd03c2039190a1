#include "matrix_peak.h"

#include <algorithm>

#include <zero3/buffer.h>
#include <zero3/copy.h>
#include "stopwatch.h"

namespace zero3::program {

double measure_gemm(GemmOp op, LinearShape shape, DType dtype, const trainer::RunPlace& place,
                    double seconds) {
  const std::unique_ptr<Device> device =
      make_device({.kind = place.device, .threads = place.threads});
  const std::unique_ptr<Stream> stream =
      device->make_stream({.name = "compute", .threads = place.threads});
  const auto zeros = [&](std::int64_t count, DType of) {
    Buffer buffer(Elements(count), of, MemoryTag::kWorkspace, *stream);
    fill_zero(buffer.view(), *stream);
    return buffer;
  };
  const Buffer x = zeros(shape.rows * shape.in, dtype);
  const Buffer y = zeros(shape.rows * shape.out, dtype);
  const Buffer w = zeros(shape.out * shape.in, dtype);
  const Buffer dw = zeros(shape.out * shape.in, DType::kF32);
  const Buffer workspace =
      zeros(Gemm::workspace_bytes(shape, dtype, place.threads).count(), DType::kU8);
  Gemm gemm(*stream);
  const double best = best_within(seconds, *stream, [&] {
    switch (op) {
      case GemmOp::kForward:
        return gemm.forward(y.view(), x.view(), w.view(), {}, shape, workspace.view());
      case GemmOp::kBackwardInput:
        return gemm.backward_input(x.view(), y.view(), w.view(), shape, Into::kReplace,
                                   workspace.view());
      case GemmOp::kBackwardWeight:
        return gemm.backward_weight(dw.view(), y.view(), x.view(), shape, workspace.view());
    }
  });
  return 2.0 * static_cast<double>(shape.rows * shape.in) * static_cast<double>(shape.out) / best;
}

double measure_matrix_peak(DType dtype, const trainer::RunPlace& place) {
  trainer::RunPlace together = place;
  together.threads = std::min(available_cores(), place.ranks * place.threads);
  return measure_gemm(GemmOp::kForward, {.rows = 1024, .in = 1024, .out = 1024}, dtype, together,
                      0.2);
}

}  // namespace zero3::program
