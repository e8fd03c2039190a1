#include "cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/exp_nonpositive.h"
#include "cpu/attention_block.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Forward {
  AttentionShape shape;
  TokenTensor out, q, k, v;
  float* lse;
};

struct Scratch {
  Scratch(float* memory, int thread, std::int64_t head_dim)
      : Scratch(attention_scratch(memory, thread, head_dim)) {}
  explicit Scratch(const AttentionScratch& all)
      : q(all.panels[0]),
        out(all.panels[1]),
        k(all.rows[0]),
        v(all.rows[1]),
        scores(all.scores[0]),
        max(all.stats[0]),
        sum(all.stats[1]) {}

  float *q, *out, *k, *v, *scores, *max, *sum;
};

// scores [rows, kPanel], of keys from `key` on for queries from `query` on: -inf where the key
// comes later.
void mask_later_keys(float* scores, std::int64_t rows, std::int64_t key, std::int64_t query) {
  for (std::int64_t r = std::max<std::int64_t>(0, query + 1 - key); r < rows; ++r) {
    std::fill_n(scores + r * kPanel, std::min(key + r - query, kPanel), -kInfinity);
  }
}

// Turns scores into exponentials under the running maximum, and brings what was summed before under
// it.
void soften(float* scores, std::int64_t rows, float* max, float* sum, float* out,
            std::int64_t head_dim) {
  float top[kPanel];
  std::copy_n(max, kPanel, top);
  for (std::int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (std::int64_t j = 0; j < kPanel; ++j) {
      const float score = scores[r * kPanel + j];
      top[j] = score > top[j] ? score : top[j];
    }
  }
  float shrink[kPanel], total[kPanel];
#pragma omp simd
  for (std::int64_t j = 0; j < kPanel; ++j) {
    shrink[j] = exp_nonpositive(max[j] - top[j]);
    total[j] = sum[j] * shrink[j];
  }
  for (std::int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (std::int64_t j = 0; j < kPanel; ++j) {
      const float weight = exp_nonpositive(scores[r * kPanel + j] - top[j]);
      scores[r * kPanel + j] = weight;
      total[j] += weight;
    }
  }
  std::copy_n(top, kPanel, max);
  std::copy_n(total, kPanel, sum);
  if (std::all_of(shrink, shrink + kPanel, [](float factor) { return factor == 1.0F; })) return;
  for (std::int64_t c = 0; c < head_dim; ++c) {
#pragma omp simd
    for (std::int64_t j = 0; j < kPanel; ++j) out[c * kPanel + j] *= shrink[j];
  }
}

void store_block(const Forward& f, std::int64_t batch, std::int64_t head, std::int64_t first,
                 std::int64_t queries, const Scratch& s) {
  float* lse = f.lse + (batch * f.shape.heads + head) * f.shape.seq + first;
  for (std::int64_t begin = 0; begin < queries; begin += kPanel) {
    const std::int64_t count = std::min(kPanel, queries - begin);
    float factors[kPanel];
    for (std::int64_t j = 0; j < count; ++j) {
      factors[j] = 1.0F / s.sum[begin + j];
      lse[begin + j] = s.max[begin + j] + std::log(s.sum[begin + j]);
    }
    store_tokens(f.out.head(batch, head), first + begin, count, f.shape.head_dim,
                 s.out + begin * f.shape.head_dim, factors);
  }
}

// Queries [first, first + kAttentionLanes) of one head.
void forward_block(const Forward& f, std::int64_t batch, std::int64_t head, std::int64_t first,
                   const Scratch& s) {
  const std::int64_t head_dim = f.shape.head_dim;
  const std::int64_t queries = std::min(kAttentionLanes, f.shape.seq - first);
  const std::int64_t kv_head = head / (f.shape.heads / f.shape.kv_heads);
  pack_tokens(s.q, f.q.head(batch, head), first, queries, head_dim, f.shape.scale);
  std::fill_n(s.out, round_up(queries, kPanel) * head_dim, 0.0F);
  std::fill_n(s.max, kAttentionLanes, -kInfinity);
  std::fill_n(s.sum, kAttentionLanes, 0.0F);
  for (std::int64_t key = 0; key < first + queries; key += kAttentionRows) {
    const std::int64_t keys = std::min(kAttentionRows, first + queries - key);
    load_tokens(s.k, f.k.head(batch, kv_head), key, keys, head_dim, 1.0F);
    load_tokens(s.v, f.v.head(batch, kv_head), key, keys, head_dim, 1.0F);
    for (std::int64_t begin = 0; begin < queries; begin += kPanel) {
      const std::int64_t query = first + begin;
      const std::int64_t rows = std::min(keys, query + kPanel - key);
      if (rows <= 0) continue;
      float* out = s.out + begin * head_dim;
      multiply_panel(s.scores, kPanel, Into::kReplace, {s.k, head_dim, Order::kRows},
                     s.q + begin * head_dim, rows, head_dim);
      mask_later_keys(s.scores, rows, key, query);
      soften(s.scores, rows, s.max + begin, s.sum + begin, out, head_dim);
      multiply_panel(out, kPanel, Into::kAccumulate, {s.v, head_dim, Order::kColumns}, s.scores,
                     head_dim, rows);
    }
  }
  store_block(f, batch, head, first, queries, s);
}

}  // namespace

Bytes attention_workspace_bytes(const AttentionShape& shape, int threads) {
  const std::int64_t floats =
      attention_row_floats(shape) + threads * attention_scratch_floats(shape.head_dim);
  return Bytes(floats * static_cast<std::int64_t>(sizeof(float)));
}

float* attention_threads_memory(const AttentionShape& shape, std::byte* workspace, Bytes bytes) {
  const int threads = internal::current_threads();
  const Bytes needed = attention_workspace_bytes(shape, threads);
  ZERO3_CHECK(bytes >= needed, "attention: the workspace has ", bytes, " and the stream's ",
              threads, " threads need ", needed,
              "; give attention_workspace_bytes() for that many threads");
  return reinterpret_cast<float*>(workspace) + attention_row_floats(shape);
}

void attention_forward(TensorView out, TensorView lse, TensorView q, TensorView k, TensorView v,
                       const AttentionShape& shape, TensorView workspace, Stream& stream) {
  const Forward f{.shape = shape,
                  .out = token_tensor(out, shape.seq, shape.heads, shape.head_dim),
                  .q = token_tensor(q, shape.seq, shape.heads, shape.head_dim),
                  .k = token_tensor(k, shape.seq, shape.kv_heads, shape.head_dim),
                  .v = token_tensor(v, shape.seq, shape.kv_heads, shape.head_dim),
                  .lse = internal::native<float>(lse)};
  auto* memory = static_cast<std::byte*>(internal::native_data(workspace));
  enqueue(stream, "attention forward", {out, lse, workspace}, {},
          [f, memory, bytes = workspace.bytes()] {
            float* scratch = attention_threads_memory(f.shape, memory, bytes);
            const std::int64_t blocks = div_ceil(f.shape.seq, kAttentionLanes);
            const std::int64_t heads = f.shape.batch * f.shape.heads;
            parallel_tasks(blocks * heads, [&](std::int64_t task, int thread) {
              // Later queries see more keys: the longest tasks start first.
              const std::int64_t block = blocks - 1 - task / heads;
              forward_block(f, task % heads / f.shape.heads, task % f.shape.heads,
                            block * kAttentionLanes, Scratch(scratch, thread, f.shape.head_dim));
            });
          });
}

}  // namespace zero3::cpu
