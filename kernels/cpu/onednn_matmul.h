#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <span>

#include <oneapi/dnnl/dnnl.hpp>

#include "cpu/packed_gemm.h"

namespace zero3::cpu {

/// Matrix products by oneDNN, granule by granule, each granule on all threads of the running task.
/// Primitives and their memory objects are prepared at a shape's first use and kept. Not
/// thread-safe: one stream's tasks use it in order.
class OneDnnMatmul {
 public:
  OneDnnMatmul();

  /// Whether this machine multiplies the dtype faster by oneDNN than by packed_gemm: bf16 with
  /// instructions for it.
  [[nodiscard]] static bool preferred(DType dtype);
  /// Scratch of the product on that many threads. For any thread.
  [[nodiscard]] static Bytes workspace_bytes(const Product& product, int threads);

  /// Returns false, having done nothing, where oneDNN has no kernel for the product or needs more
  /// scratch than given.
  [[nodiscard]] bool multiply(const Product& product, std::span<std::byte> scratch);

 private:
  struct Key {
    std::int64_t rows, cols, depth;
    Order a_order, b_order;
    DType dtype, c_dtype, bias_dtype;
    bool has_bias;
    Into into;
    int threads;
    // NOLINTNEXTLINE(modernize-use-nullptr): takes the comparison with literal 0 for a pointer.
    auto operator<=>(const Key&) const = default;
  };
  struct Prepared;

  static Key key_of(const Product& granule, int threads);
  // Null: oneDNN cannot.
  Prepared* prepare(const Product& granule, int threads);

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<Key, std::shared_ptr<Prepared>> prepared_;
};

}  // namespace zero3::cpu
