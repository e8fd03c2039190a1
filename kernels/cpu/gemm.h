#pragma once

#include <memory>
#include <string>

#include <zero3/gemm.h>

namespace zero3::cpu {

class OneDnnMatmul;

/// The products of zero3::Gemm on a stream of a CPU device. Arguments have been checked.
class Gemm {
 public:
  Gemm(Stream& stream, std::int64_t granule_rows);

  void forward(TensorView y, TensorView x, TensorView w, TensorView bias, LinearShape shape,
               TensorView workspace);
  void backward_input(TensorView dx, TensorView dy, TensorView w, LinearShape shape, Into into,
                      TensorView workspace);
  void backward_weight(TensorView dw, TensorView dy, TensorView x, LinearShape shape,
                       TensorView workspace);
  void backward_bias(TensorView dbias, TensorView dy, LinearShape shape);

  [[nodiscard]] std::int64_t granule_rows() const { return granule_rows_; }
  [[nodiscard]] static Bytes workspace_bytes(LinearShape shape, DType dtype, int threads,
                                             std::int64_t granule_rows);
  /// What every call needs, on one thread.
  [[nodiscard]] static Bytes least_workspace();
  [[nodiscard]] static std::string description();

 private:
  Stream& stream_;
  std::int64_t granule_rows_;
  // Tasks that are still enqueued keep it alive.
  std::shared_ptr<OneDnnMatmul> onednn_;
};

}  // namespace zero3::cpu
