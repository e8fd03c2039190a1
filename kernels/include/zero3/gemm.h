#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <zero3/stream.h>
#include <zero3/tensor_view.h>
#include <zero3/units.h>

namespace zero3 {

/// Rows that token-wise work handles at a time, from the first row of the view given. Sums over
/// rows add one granule's sum at a time, so results do not depend on how a caller cuts its rows
/// into tiles of whole granules.
inline constexpr std::int64_t kDefaultGranuleRows = 256;

/// A linear layer on `rows` tokens: weights [out, in] row-major, as PyTorch and Hugging Face store
/// them.
struct LinearShape {
  std::int64_t rows = 0, in = 0, out = 0;
};

/// Whether a product replaces its target or is added to it.
enum class Into : std::uint8_t { kReplace, kAccumulate };

/// Matrix products of linear layers on one stream, walked in granules of rows, accumulated in fp32.
///
/// Keeps what the backend prepares per shape, so one object serves a whole model; after each
/// shape's first use nothing is prepared again. Operands of one product have one dtype, fp32 or
/// bf16, except where said. All row-major; results share no memory with operands. Enqueues on the
/// stream given at construction. Every function throws UsageError when sizes and dtypes do not fit
/// the shape; a workspace for fewer threads than the stream has makes the stream fail with one.
/// Products of 0 rows enqueue nothing. Bits do not depend on the number of threads in fp32.
class Gemm {
 public:
  /// The stream outlives the object.
  explicit Gemm(Stream& stream, std::int64_t granule_rows = kDefaultGranuleRows);
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm();
  Gemm(Gemm&&) noexcept;
  Gemm& operator=(Gemm&&) noexcept;

  /// y[rows, out] = x[rows, in] · w[out, in]^T + bias[out]. `bias` may be empty (no bias), else it
  /// has w's dtype or fp32. `y` has x's dtype or fp32.
  void forward(TensorView y, TensorView x, TensorView w, TensorView bias, LinearShape shape,
               TensorView workspace);
  /// dx[rows, in] = (or +=) dy[rows, out] · w[out, in]. `dx` has dy's dtype or fp32.
  void backward_input(TensorView dx, TensorView dy, TensorView w, LinearShape shape, Into into,
                      TensorView workspace);
  /// dw[out, in] += dy[rows, out]^T · x[rows, in]; dw is fp32.
  void backward_weight(TensorView dw, TensorView dy, TensorView x, LinearShape shape,
                       TensorView workspace);
  /// dbias[out] += column sums of dy[rows, out]; dbias is fp32.
  void backward_bias(TensorView dbias, TensorView dy, LinearShape shape);

  [[nodiscard]] std::int64_t granule_rows() const;
  /// Scratch that any of the four needs for this shape and operand dtype, on a stream with that
  /// many threads: the size of `workspace` in bytes (dtype kU8). The same for every number of rows
  /// from one granule on.
  [[nodiscard]] static Bytes workspace_bytes(LinearShape shape, DType dtype, int threads,
                                             std::int64_t granule_rows = kDefaultGranuleRows);
  /// What multiplies on this machine, by dtype, for reports.
  [[nodiscard]] static std::string backend_description();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero3
