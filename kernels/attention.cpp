#include <zero3/attention.h>

#include <cmath>

#include "arguments.h"
#include "cpu/attention.h"

namespace zero3 {
namespace {

constexpr std::int64_t kMaxHeadDim = 256;

void check_shape(std::string_view operation, const AttentionShape& s) {
  ZERO3_CHECK(s.batch >= 0 && s.seq >= 0, operation, ": batch ", s.batch, " and seq ", s.seq,
              " have to be 0 or more");
  ZERO3_CHECK(s.heads >= 1 && s.kv_heads >= 1 && s.heads % s.kv_heads == 0, operation, ": ",
              s.heads, " heads cannot share ", s.kv_heads,
              " key/value heads; the first has to be a multiple of the second");
  ZERO3_CHECK(s.head_dim >= 1 && s.head_dim <= kMaxHeadDim, operation, ": head_dim is ", s.head_dim,
              "; it has to be in [1, ", kMaxHeadDim, "]");
  ZERO3_CHECK(std::isfinite(s.scale), operation, ": scale is ", s.scale,
              "; it has to be finite, or 0 for the default");
}

AttentionShape with_scale(AttentionShape shape) {
  if (shape.scale == 0) shape.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  return shape;
}

void check_workspace(std::string_view operation, const TensorView& workspace,
                     const AttentionShape& shape, const Stream& stream) {
  check_operand(operation, "workspace", workspace, workspace.count(), {DType::kU8}, stream);
  // A stream's thread count is known to its tasks, which check against it.
  const Bytes least = cpu::attention_workspace_bytes(shape, 1);
  ZERO3_CHECK(workspace.bytes() >= least, operation, ": the workspace has ", workspace.bytes(),
              " where ", least, " are needed; give attention_workspace_bytes()");
}

// The elements of a tensor of the queries' shape, and of one of the keys'.
struct Counts {
  explicit Counts(const AttentionShape& s)
      : queries(s.batch * s.seq * s.heads * s.head_dim),
        keys(s.batch * s.seq * s.kv_heads * s.head_dim),
        rows(s.batch * s.heads * s.seq) {}
  std::int64_t queries, keys, rows;
};

void check_inputs(std::string_view operation, const TensorView& lse, const TensorView& q,
                  const TensorView& k, const TensorView& v, const AttentionShape& shape,
                  const Stream& stream) {
  const Counts counts(shape);
  check_operand(operation, "q", q, counts.queries, {DType::kF32, DType::kBF16}, stream);
  check_operand(operation, "k", k, counts.keys, {q.dtype()}, stream);
  check_operand(operation, "v", v, counts.keys, {q.dtype()}, stream);
  check_operand(operation, "lse", lse, counts.rows, {DType::kF32}, stream);
}

}  // namespace

void attention_forward(TensorView out, TensorView lse, TensorView q, TensorView k, TensorView v,
                       const AttentionShape& shape, TensorView workspace, Stream& stream) {
  constexpr std::string_view kName = "attention_forward";
  check_shape(kName, shape);
  check_inputs(kName, lse, q, k, v, shape, stream);
  check_operand(kName, "out", out, Counts(shape).queries, {q.dtype()}, stream);
  if (out.empty()) return;
  check_workspace(kName, workspace, shape, stream);
  check_disjoint(kName, {"out", out},
                 {{"lse", lse}, {"q", q}, {"k", k}, {"v", v}, {"workspace", workspace}});
  check_disjoint(kName, {"lse", lse}, {{"q", q}, {"k", k}, {"v", v}, {"workspace", workspace}});
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::attention_forward(out, lse, q, k, v, with_scale(shape), workspace, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda(kName);
  }
}

void attention_backward(TensorView dq, TensorView dk, TensorView dv, TensorView d_out,
                        TensorView out, TensorView lse, TensorView q, TensorView k, TensorView v,
                        const AttentionShape& shape, TensorView workspace, Stream& stream) {
  constexpr std::string_view kName = "attention_backward";
  check_shape(kName, shape);
  check_inputs(kName, lse, q, k, v, shape, stream);
  const Counts counts(shape);
  for (const NamedView& tensor : {NamedView{"dq", dq}, {"d_out", d_out}, {"out", out}}) {
    check_operand(kName, tensor.name, tensor.view, counts.queries, {q.dtype()}, stream);
  }
  for (const NamedView& tensor : {NamedView{"dk", dk}, {"dv", dv}}) {
    check_operand(kName, tensor.name, tensor.view, counts.keys, {q.dtype()}, stream);
  }
  if (dq.empty()) return;
  check_workspace(kName, workspace, shape, stream);
  check_disjoint(kName, {"dq", dq}, {{"dk", dk}, {"dv", dv}});
  check_disjoint(kName, {"dk", dk}, {{"dv", dv}});
  for (const NamedView& written :
       {NamedView{"dq", dq}, {"dk", dk}, {"dv", dv}, {"workspace", workspace}}) {
    check_disjoint(kName, written,
                   {{"d_out", d_out}, {"out", out}, {"lse", lse}, {"q", q}, {"k", k}, {"v", v}});
  }
  check_disjoint(kName, {"workspace", workspace}, {{"dq", dq}, {"dk", dk}, {"dv", dv}});
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
    case DeviceKind::kCpuSim:
      return cpu::attention_backward(dq, dk, dv, d_out, out, lse, q, k, v, with_scale(shape),
                                     workspace, stream);
    case DeviceKind::kCuda:
      throw built_without_cuda(kName);
  }
}

Bytes attention_workspace_bytes(const AttentionShape& shape, DType dtype, int threads) {
  constexpr std::string_view kName = "attention_workspace_bytes";
  check_shape(kName, shape);
  ZERO3_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, kName,
              ": attention is for fp32 and bf16, not ", dtype);
  return cpu::attention_workspace_bytes(shape, threads);
}

}  // namespace zero3
