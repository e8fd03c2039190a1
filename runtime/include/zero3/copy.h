#pragma once

#include <zero3/stream.h>
#include <zero3/tensor_view.h>

namespace zero3 {

/// Enqueues a copy of all bytes of `source` to `target` (same dtype and size, no overlap; devices
/// whose memory the stream's device reaches). Throws UsageError.
void copy(TensorView target, TensorView source, Stream& stream);

/// Enqueues a copy from host memory of target.bytes() bytes; `source` stays valid and unchanged
/// until the stream has passed it.
void copy_from_host(TensorView target, const void* source, Stream& stream);

/// Enqueues a copy to host memory of source.bytes() bytes; `target` may be read after the stream
/// has passed.
void copy_to_host(void* target, TensorView source, Stream& stream);

/// Enqueues zeros for every byte.
void fill_zero(TensorView target, Stream& stream);

}  // namespace zero3
