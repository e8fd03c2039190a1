#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <zero3/communicator.h>

/// The arithmetic of collectives over plain memory.
///
/// The kernels of the same meaning are enqueued with operands that are known then; here the peers'
/// addresses are known only when all ranks have arrived.
namespace zero3::collective {

/// target = source. No overlap. What is too large to stay in a cache is written past it, which
/// saves reading the target first: a third of the traffic.
void copy_bytes(std::byte* target, const std::byte* source, std::int64_t bytes);

/// target = source, rounded to `dtype` (bf16 or fp16).
void narrow(void* target, DType dtype, const float* source, std::int64_t count);
/// target = source, which is of `dtype` (bf16 or fp16).
void widen(float* target, const void* source, DType dtype, std::int64_t count);

/// accumulator = [accumulator +] contributions[0] + contributions[1] + …, each element rounded to
/// `reduction.wire` before it is added. No overlap.
void fold(float* accumulator, std::span<const void* const> contributions, std::int64_t count,
          Reduction reduction);

/// target = contributions[0] + contributions[1] + …; `target` may be one of them. fp32, fp64, and
/// int64 or uint64 modulo 2^64.
void sum(void* target, std::span<const void* const> contributions, std::int64_t count, DType dtype);

}  // namespace zero3::collective
