#include "cpu/gemm.h"

#include <algorithm>
#include <span>

#include <zero3/half.h>

#include "cpu/onednn_matmul.h"
#include "cpu/packed_gemm.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {
namespace {

Operand operand(const TensorView& view, std::int64_t stride, Order order) {
  return {
      .data = internal::native_data(view), .dtype = view.dtype(), .stride = stride, .order = order};
}

Operand operand(DType dtype, std::int64_t stride, Order order) {
  return {.data = nullptr, .dtype = dtype, .stride = stride, .order = order};
}

Product forward_product(LinearShape s, const Operand& x, const Operand& w,
                        std::int64_t granule_rows) {
  return {.rows = s.rows,
          .cols = s.out,
          .depth = s.in,
          .a = x,
          .b = w,
          .row_granule = granule_rows,
          .depth_granule = s.in};
}

Product input_product(LinearShape s, const Operand& dy, const Operand& w,
                      std::int64_t granule_rows) {
  return {.rows = s.rows,
          .cols = s.in,
          .depth = s.out,
          .a = dy,
          .b = w,
          .row_granule = granule_rows,
          .depth_granule = s.out};
}

Product weight_product(LinearShape s, const Operand& dy, const Operand& x,
                       std::int64_t granule_rows) {
  return {.rows = s.out,
          .cols = s.in,
          .depth = s.rows,
          .a = dy,
          .b = x,
          .into = Into::kAccumulate,
          .row_granule = s.out,
          .depth_granule = granule_rows};
}

void run(OneDnnMatmul* onednn, const Product& product, std::span<std::byte> workspace) {
  if (onednn != nullptr && OneDnnMatmul::preferred(product.a.dtype) &&
      onednn->multiply(product, workspace))
    return;
  const Bytes needed = packed_gemm_workspace(internal::current_threads());
  ZERO3_CHECK(std::ssize(workspace) >= needed.count(), "gemm: the workspace has ",
              Bytes(std::ssize(workspace)), " and the stream's ", internal::current_threads(),
              " threads need ", needed, "; give Gemm::workspace_bytes() for that many threads");
  packed_gemm(product, reinterpret_cast<float*>(workspace.data()));
}

std::span<std::byte> bytes_of_view(const TensorView& view) {
  return {static_cast<std::byte*>(internal::native_data(view)),
          static_cast<std::size_t>(view.bytes().count())};
}

// dbias[begin, end) += the sums of those columns, one granule's sum at a time.
template <class T>
void add_column_sums(float* dbias, const T* dy, LinearShape shape, std::int64_t granule_rows,
                     std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kCols = 64;
  for (std::int64_t col = begin; col < end; col += kCols) {
    const std::int64_t width = std::min(kCols, end - col);
    for (std::int64_t first = 0; first < shape.rows; first += granule_rows) {
      float sums[kCols] = {};
      const std::int64_t last = std::min(first + granule_rows, shape.rows);
      for (std::int64_t row = first; row < last; ++row) {
        const T* line = dy + row * shape.out + col;
        for (std::int64_t j = 0; j < width; ++j) sums[j] += static_cast<float>(line[j]);
      }
      for (std::int64_t j = 0; j < width; ++j) dbias[col + j] += sums[j];
    }
  }
}

}  // namespace

Gemm::Gemm(Stream& stream, std::int64_t granule_rows)
    : stream_(stream), granule_rows_(granule_rows), onednn_(std::make_shared<OneDnnMatmul>()) {}

void Gemm::forward(TensorView y, TensorView x, TensorView w, TensorView bias, LinearShape shape,
                   TensorView workspace) {
  Product product = forward_product(shape, operand(x, shape.in, Order::kRows),
                                    operand(w, shape.in, Order::kColumns), granule_rows_);
  product.c = internal::native_data(y);
  product.c_dtype = y.dtype();
  if (!bias.empty()) {
    product.bias = internal::native_data(bias);
    product.bias_dtype = bias.dtype();
  }
  enqueue(stream_, "gemm forward", {y, workspace}, {},
          [product, scratch = bytes_of_view(workspace), onednn = onednn_] {
            run(onednn.get(), product, scratch);
          });
}

void Gemm::backward_input(TensorView dx, TensorView dy, TensorView w, LinearShape shape, Into into,
                          TensorView workspace) {
  Product product = input_product(shape, operand(dy, shape.out, Order::kRows),
                                  operand(w, shape.in, Order::kRows), granule_rows_);
  product.c = internal::native_data(dx);
  product.c_dtype = dx.dtype();
  product.into = into;
  const TensorView read = into == Into::kAccumulate ? dx : TensorView();
  enqueue(stream_, "gemm backward input", {dx, workspace}, {read},
          [product, scratch = bytes_of_view(workspace), onednn = onednn_] {
            run(onednn.get(), product, scratch);
          });
}

void Gemm::backward_weight(TensorView dw, TensorView dy, TensorView x, LinearShape shape,
                           TensorView workspace) {
  Product product = weight_product(shape, operand(dy, shape.out, Order::kColumns),
                                   operand(x, shape.in, Order::kRows), granule_rows_);
  product.c = internal::native_data(dw);
  enqueue(stream_, "gemm backward weight", {workspace}, {},
          [product, scratch = bytes_of_view(workspace), onednn = onednn_] {
            run(onednn.get(), product, scratch);
          });
}

void Gemm::backward_bias(TensorView dbias, TensorView dy, LinearShape shape) {
  auto* sums = internal::native<float>(dbias);
  visit<float, BFloat16>(dy, [&](const auto* values) {
    enqueue(stream_, "gemm backward bias", {}, {}, [=, granule_rows = granule_rows_] {
      parallel_for(shape.out, rows_per_grain(shape.rows),
                   [&](std::int64_t begin, std::int64_t end) {
                     add_column_sums(sums, values, shape, granule_rows, begin, end);
                   });
    });
  });
}

Bytes Gemm::workspace_bytes(LinearShape shape, DType dtype, int threads,
                            std::int64_t granule_rows) {
  Bytes bytes = packed_gemm_workspace(threads);
  if (!OneDnnMatmul::preferred(dtype)) return bytes;
  shape.rows = granule_rows;
  const Operand rows_by_out = operand(dtype, shape.out, Order::kRows);
  const Operand rows_by_in = operand(dtype, shape.in, Order::kRows);
  const Operand w = rows_by_in;
  const Operand w_transposed = operand(dtype, shape.in, Order::kColumns);
  const Operand dy_transposed = operand(dtype, shape.out, Order::kColumns);
  const auto include = [&](Product product, DType c_dtype, Into into) {
    product.c_dtype = c_dtype;
    product.into = into;
    bytes = std::max(bytes, OneDnnMatmul::workspace_bytes(product, threads));
  };
  for (const DType c_dtype : {dtype, DType::kF32}) {
    include(forward_product(shape, rows_by_in, w_transposed, granule_rows), c_dtype,
            Into::kReplace);
    for (const Into into : {Into::kReplace, Into::kAccumulate}) {
      include(input_product(shape, rows_by_out, w, granule_rows), c_dtype, into);
    }
  }
  include(weight_product(shape, dy_transposed, rows_by_in, granule_rows), DType::kF32,
          Into::kAccumulate);
  return bytes;
}

Bytes Gemm::least_workspace() {
  return packed_gemm_workspace(1);
}

std::string Gemm::description() {
  const std::string own = concat("own kernels of ", kVectorFloats, " lanes");
  if (!OneDnnMatmul::preferred(DType::kBF16))
    return own + " for fp32, and for bf16 widened to fp32";
  const dnnl_version_t& version = *dnnl_version();
  return concat(own, " for fp32; oneDNN ", version.major, '.', version.minor, '.', version.patch,
                " for bf16");
}

}  // namespace zero3::cpu
