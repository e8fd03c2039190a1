#pragma once

/// Marks per-element math that CPU loops and CUDA kernels share.
#ifdef __CUDACC__
#define ZERO3_HD __host__ __device__
#else
#define ZERO3_HD
#endif
