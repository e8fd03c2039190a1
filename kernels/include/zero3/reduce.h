#pragma once

#include <cstdint>

#include <zero3/gemm.h>
#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// The step of the left fold that gives gradients their bits: accumulator (fp32) = source
/// (kReplace) or accumulator + source (kAccumulate), where each element of source (fp32, bf16,
/// fp16) is first rounded to `wire` (one of these). An fp32 source may be the accumulator. Throws
/// UsageError when sizes differ, as all below do.
void fold(TensorView accumulator, TensorView source, DType wire, Into into, Stream& stream);

/// out[0] (fp64) = values[0] + values[1] + … in order, starting from +0; values fp64.
void sum_in_order(TensorView out, TensorView values, Stream& stream);

/// Elements per block of the global norm.
inline constexpr std::int64_t kNormBlock = 1024;

/// sums[b] (fp64) = Σ values[i]² over block b of kNormBlock elements, in double, in index order;
/// the last block may be short. values fp32; sums has ceil(values / kNormBlock) elements.
/// Non-finite values make their block's sum non-finite.
void block_square_sums(TensorView sums, TensorView values, Stream& stream);

/// out[0] (int64) = index of the first element that is not finite, or -1; values fp32, bf16 or
/// fp16.
void first_nonfinite(TensorView out, TensorView values, Stream& stream);

/// out[0] (uint64) = Σ mix64(first_index + i, bits of values[i]) mod 2^64, values fp32: independent
/// of how a sequence is cut into calls. mix64 is two rounds of SplitMix64's finaliser f (Steele,
/// Lea, Flood 2014): f(f(index + γ) + bits) with that generator's increment γ.
void checksum(TensorView out, TensorView values, std::int64_t first_index, Stream& stream);
[[nodiscard]] std::uint64_t mix64(std::uint64_t index, std::uint32_t bits);

}  // namespace zero3
