#include <zero3/gemm.h>

#include "arguments.h"
#include "cpu/gemm.h"

namespace zero3 {
namespace {

constexpr std::int64_t kMaxExtent = std::int64_t{1} << 31;

void check_shape(std::string_view operation, LinearShape shape) {
  ZERO3_CHECK(shape.rows >= 0 && shape.in >= 1 && shape.out >= 1, operation, ": rows ", shape.rows,
              ", in ", shape.in, ", out ", shape.out,
              "; rows has to be 0 or more, in and out 1 or more");
  ZERO3_CHECK(shape.rows < kMaxExtent && shape.in < kMaxExtent && shape.out < kMaxExtent, operation,
              ": rows ", shape.rows, ", in ", shape.in, ", out ", shape.out,
              "; each has to be below 2^31");
}

// x and w, or dy and w, or dy and x: fp32 or bf16, the same for both.
void check_pair(std::string_view operation, NamedView a, std::int64_t a_count, NamedView b,
                std::int64_t b_count, const Stream& stream) {
  check_operand(operation, a.name, a.view, a_count, {DType::kF32, DType::kBF16}, stream);
  check_operand(operation, b.name, b.view, b_count, {a.view.dtype()}, stream);
}

void check_workspace(std::string_view operation, const TensorView& workspace,
                     const Stream& stream) {
  check_operand(operation, "workspace", workspace, workspace.count(), {DType::kU8}, stream);
  // A stream's thread count is known to its tasks, which check against it.
  const Bytes least = cpu::Gemm::least_workspace();
  ZERO3_CHECK(workspace.bytes() >= least, operation, ": the workspace has ", workspace.bytes(),
              " where ", least, " are needed for each thread; give Gemm::workspace_bytes()");
}

}  // namespace

struct Gemm::State {
  Stream& stream;
  cpu::Gemm cpu;
};

Gemm::Gemm(Stream& stream, std::int64_t granule_rows) {
  ZERO3_CHECK(granule_rows >= 1, "Gemm: granule_rows is ", granule_rows, "; give 1 or more");
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      state_ = std::make_unique<State>(State{stream, cpu::Gemm(stream, granule_rows)});
      return;
    case DeviceKind::kCuda:
      throw built_without_cuda("Gemm");
  }
}

Gemm::~Gemm() = default;
Gemm::Gemm(Gemm&&) noexcept = default;
Gemm& Gemm::operator=(Gemm&&) noexcept = default;

void Gemm::forward(TensorView y, TensorView x, TensorView w, TensorView bias, LinearShape shape,
                   TensorView workspace) {
  constexpr std::string_view kName = "Gemm::forward";
  const Stream& stream = state_->stream;
  check_shape(kName, shape);
  if (shape.rows == 0) return;
  check_pair(kName, {"x", x}, shape.rows * shape.in, {"w", w}, shape.out * shape.in, stream);
  check_operand(kName, "y", y, shape.rows * shape.out, {x.dtype(), DType::kF32}, stream);
  if (!bias.empty())
    check_operand(kName, "bias", bias, shape.out, {w.dtype(), DType::kF32}, stream);
  check_workspace(kName, workspace, stream);
  check_disjoint(kName, {"y", y}, {{"x", x}, {"w", w}, {"bias", bias}, {"workspace", workspace}});
  state_->cpu.forward(y, x, w, bias, shape, workspace);
}

void Gemm::backward_input(TensorView dx, TensorView dy, TensorView w, LinearShape shape, Into into,
                          TensorView workspace) {
  constexpr std::string_view kName = "Gemm::backward_input";
  const Stream& stream = state_->stream;
  check_shape(kName, shape);
  if (shape.rows == 0) return;
  check_pair(kName, {"dy", dy}, shape.rows * shape.out, {"w", w}, shape.out * shape.in, stream);
  check_operand(kName, "dx", dx, shape.rows * shape.in, {dy.dtype(), DType::kF32}, stream);
  check_workspace(kName, workspace, stream);
  check_disjoint(kName, {"dx", dx}, {{"dy", dy}, {"w", w}, {"workspace", workspace}});
  state_->cpu.backward_input(dx, dy, w, shape, into, workspace);
}

void Gemm::backward_weight(TensorView dw, TensorView dy, TensorView x, LinearShape shape,
                           TensorView workspace) {
  constexpr std::string_view kName = "Gemm::backward_weight";
  const Stream& stream = state_->stream;
  check_shape(kName, shape);
  if (shape.rows == 0) return;
  check_pair(kName, {"dy", dy}, shape.rows * shape.out, {"x", x}, shape.rows * shape.in, stream);
  check_operand(kName, "dw", dw, shape.out * shape.in, {DType::kF32}, stream);
  check_workspace(kName, workspace, stream);
  check_disjoint(kName, {"dw", dw}, {{"dy", dy}, {"x", x}, {"workspace", workspace}});
  state_->cpu.backward_weight(dw, dy, x, shape, workspace);
}

void Gemm::backward_bias(TensorView dbias, TensorView dy, LinearShape shape) {
  constexpr std::string_view kName = "Gemm::backward_bias";
  const Stream& stream = state_->stream;
  check_shape(kName, shape);
  if (shape.rows == 0) return;
  check_operand(kName, "dy", dy, shape.rows * shape.out, {DType::kF32, DType::kBF16}, stream);
  check_operand(kName, "dbias", dbias, shape.out, {DType::kF32}, stream);
  check_disjoint(kName, {"dbias", dbias}, {{"dy", dy}});
  state_->cpu.backward_bias(dbias, dy, shape);
}

std::int64_t Gemm::granule_rows() const {
  return state_->cpu.granule_rows();
}

Bytes Gemm::workspace_bytes(LinearShape shape, DType dtype, int threads,
                            std::int64_t granule_rows) {
  check_shape("Gemm::workspace_bytes", shape);
  ZERO3_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "Gemm multiplies fp32 and bf16, not ",
              dtype);
  return cpu::Gemm::workspace_bytes(shape, dtype, threads, granule_rows);
}

std::string Gemm::backend_description() {
  return cpu::Gemm::description();
}

}  // namespace zero3
