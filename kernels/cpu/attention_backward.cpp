#include <algorithm>

#include "common/exp_nonpositive.h"
#include "cpu/attention.h"
#include "cpu/attention_block.h"
#include "cpu/lanes.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {
namespace {

struct Backward {
  AttentionShape shape;
  TokenTensor dq, dk, dv, d_out, out, q, k, v;
  const float* lse;
  // Σ_c d_out · out of each query: what the softmax's backward subtracts from each of its
  // gradients.
  float* dots;

  [[nodiscard]] std::int64_t row(std::int64_t batch, std::int64_t head, std::int64_t query) const {
    return (batch * shape.heads + head) * shape.seq + query;
  }
  [[nodiscard]] std::int64_t group() const { return shape.heads / shape.kv_heads; }
};

template <class T>
void compute_dots(const Backward& b, std::int64_t batch, std::int64_t head, std::int64_t first,
                  std::int64_t last) {
  const HeadTokens d_out = b.d_out.head(batch, head);
  const HeadTokens out = b.out.head(batch, head);
  for (std::int64_t query = first; query < last; ++query) {
    const T* x = reinterpret_cast<const T*>(d_out.data) + query * d_out.stride;
    const T* y = reinterpret_cast<const T*>(out.data) + query * out.stride;
    b.dots[b.row(batch, head, query)] = lane_sum(b.shape.head_dim, [&](std::int64_t c) {
      return static_cast<float>(x[c]) * static_cast<float>(y[c]);
    });
  }
}

// scores [rows, kPanel] of queries from `query` on for keys from `key` on become probabilities;
// d_scores comes in as the gradients of the probabilities.
void soften_backward_by_rows(float* scores, float* d_scores, std::int64_t rows, std::int64_t query,
                             std::int64_t key, const float* lse, const float* dots) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t visible = std::clamp<std::int64_t>(query + r - key + 1, 0, kPanel);
#pragma omp simd
    for (std::int64_t j = 0; j < kPanel; ++j) {
      const float probability = exp_nonpositive(scores[r * kPanel + j] - lse[r]);
      scores[r * kPanel + j] = probability;
      d_scores[r * kPanel + j] = probability * (d_scores[r * kPanel + j] - dots[r]);
    }
    std::fill(scores + r * kPanel + visible, scores + (r + 1) * kPanel, 0.0F);
    std::fill(d_scores + r * kPanel + visible, d_scores + (r + 1) * kPanel, 0.0F);
  }
}

// The same for scores [rows, kPanel] of keys from `key` on for queries from `query` on; the
// probabilities themselves are not needed.
void soften_backward_by_lanes(const float* scores, float* d_scores, std::int64_t rows,
                              std::int64_t query, std::int64_t key, const float* lse,
                              const float* dots) {
  for (std::int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (std::int64_t j = 0; j < kPanel; ++j) {
      const float probability = exp_nonpositive(scores[r * kPanel + j] - lse[j]);
      d_scores[r * kPanel + j] = probability * (d_scores[r * kPanel + j] - dots[j]);
    }
    const std::int64_t hidden = std::clamp<std::int64_t>(key + r - query, 0, kPanel);
    std::fill_n(d_scores + r * kPanel, hidden, 0.0F);
  }
}

// Adds what the queries [query, query + queries) of one head give to dk and dv of the keys [first,
// first + keys).
void add_queries(const Backward& b, std::int64_t batch, std::int64_t head, std::int64_t query,
                 std::int64_t queries, std::int64_t first, std::int64_t keys,
                 const AttentionScratch& s) {
  const auto [k, v, dk, dv] = s.panels;
  const auto [scores, d_scores] = s.scores;
  const std::int64_t head_dim = b.shape.head_dim;
  load_tokens(s.rows[0], b.q.head(batch, head), query, queries, head_dim, b.shape.scale);
  load_tokens(s.rows[1], b.d_out.head(batch, head), query, queries, head_dim, 1.0F);
  for (std::int64_t begin = 0; begin < keys; begin += kPanel) {
    const std::int64_t earlier = std::max<std::int64_t>(0, first + begin - query);
    const std::int64_t rows = queries - earlier;
    if (rows <= 0) break;
    const float* q = s.rows[0] + earlier * head_dim;
    const float* d_out = s.rows[1] + earlier * head_dim;
    const std::int64_t stats = b.row(batch, head, query + earlier);
    const std::int64_t panel = begin * head_dim;
    multiply_panel(scores, kPanel, Into::kReplace, {q, head_dim, Order::kRows}, k + panel, rows,
                   head_dim);
    multiply_panel(d_scores, kPanel, Into::kReplace, {d_out, head_dim, Order::kRows}, v + panel,
                   rows, head_dim);
    soften_backward_by_rows(scores, d_scores, rows, query + earlier, first + begin, b.lse + stats,
                            b.dots + stats);
    multiply_panel(dv + panel, kPanel, Into::kAccumulate, {d_out, head_dim, Order::kColumns},
                   scores, head_dim, rows);
    multiply_panel(dk + panel, kPanel, Into::kAccumulate, {q, head_dim, Order::kColumns}, d_scores,
                   head_dim, rows);
  }
}

// dk and dv of keys [first, first + kAttentionLanes) of one key/value head: queries of its heads
// pass by, in order.
void keys_block(const Backward& b, std::int64_t batch, std::int64_t kv_head, std::int64_t first,
                const AttentionScratch& s) {
  const auto [k, v, dk, dv] = s.panels;
  const std::int64_t head_dim = b.shape.head_dim;
  const std::int64_t keys = std::min(kAttentionLanes, b.shape.seq - first);
  pack_tokens(k, b.k.head(batch, kv_head), first, keys, head_dim, 1.0F);
  pack_tokens(v, b.v.head(batch, kv_head), first, keys, head_dim, 1.0F);
  std::fill_n(dk, round_up(keys, kPanel) * head_dim, 0.0F);
  std::fill_n(dv, round_up(keys, kPanel) * head_dim, 0.0F);
  for (std::int64_t head = kv_head * b.group(); head < (kv_head + 1) * b.group(); ++head) {
    for (std::int64_t query = first; query < b.shape.seq; query += kAttentionRows) {
      const std::int64_t queries = std::min(kAttentionRows, b.shape.seq - query);
      add_queries(b, batch, head, query, queries, first, keys, s);
    }
  }
  float ones[kPanel];
  std::fill_n(ones, kPanel, 1.0F);
  for (std::int64_t begin = 0; begin < keys; begin += kPanel) {
    const std::int64_t count = std::min(kPanel, keys - begin);
    const std::int64_t panel = begin * head_dim;
    store_tokens(b.dk.head(batch, kv_head), first + begin, count, head_dim, dk + panel, ones);
    store_tokens(b.dv.head(batch, kv_head), first + begin, count, head_dim, dv + panel, ones);
  }
}

// dq of queries [first, first + kAttentionLanes) of one head: keys pass by, in order.
void queries_block(const Backward& b, std::int64_t batch, std::int64_t head, std::int64_t first,
                   const AttentionScratch& s) {
  const auto [q, d_out, dq, unused] = s.panels;
  const auto [k, v] = s.rows;
  const auto [scores, d_scores] = s.scores;
  const auto [lse, dots] = s.stats;
  const std::int64_t head_dim = b.shape.head_dim;
  const std::int64_t queries = std::min(kAttentionLanes, b.shape.seq - first);
  const std::int64_t kv_head = head / b.group();
  pack_tokens(q, b.q.head(batch, head), first, queries, head_dim, b.shape.scale);
  pack_tokens(d_out, b.d_out.head(batch, head), first, queries, head_dim, 1.0F);
  std::fill_n(dq, round_up(queries, kPanel) * head_dim, 0.0F);
  std::fill_n(lse, kAttentionLanes, 0.0F);
  std::fill_n(dots, kAttentionLanes, 0.0F);
  std::copy_n(b.lse + b.row(batch, head, first), queries, lse);
  std::copy_n(b.dots + b.row(batch, head, first), queries, dots);
  for (std::int64_t key = 0; key < first + queries; key += kAttentionRows) {
    const std::int64_t keys = std::min(kAttentionRows, first + queries - key);
    load_tokens(k, b.k.head(batch, kv_head), key, keys, head_dim, 1.0F);
    load_tokens(v, b.v.head(batch, kv_head), key, keys, head_dim, 1.0F);
    for (std::int64_t begin = 0; begin < queries; begin += kPanel) {
      const std::int64_t query = first + begin;
      const std::int64_t rows = std::min(keys, query + kPanel - key);
      if (rows <= 0) continue;
      const std::int64_t panel = begin * head_dim;
      multiply_panel(scores, kPanel, Into::kReplace, {k, head_dim, Order::kRows}, q + panel, rows,
                     head_dim);
      multiply_panel(d_scores, kPanel, Into::kReplace, {v, head_dim, Order::kRows}, d_out + panel,
                     rows, head_dim);
      soften_backward_by_lanes(scores, d_scores, rows, query, key, lse + begin, dots + begin);
      multiply_panel(dq + panel, kPanel, Into::kAccumulate, {k, head_dim, Order::kColumns},
                     d_scores, head_dim, rows);
    }
  }
  float scales[kPanel];
  std::fill_n(scales, kPanel, b.shape.scale);
  for (std::int64_t begin = 0; begin < queries; begin += kPanel) {
    store_tokens(b.dq.head(batch, head), first + begin, std::min(kPanel, queries - begin), head_dim,
                 dq + begin * head_dim, scales);
  }
}

void run(const Backward& b, float* scratch) {
  const AttentionShape& shape = b.shape;
  const std::int64_t blocks = div_ceil(shape.seq, kAttentionLanes);
  const std::int64_t heads = shape.batch * shape.heads;
  const std::int64_t kv_heads = shape.batch * shape.kv_heads;
  parallel_tasks(blocks * heads, [&](std::int64_t task, int) {
    const std::int64_t first = task / heads * kAttentionLanes;
    const auto dots = b.q.dtype == DType::kF32 ? compute_dots<float> : compute_dots<BFloat16>;
    dots(b, task % heads / shape.heads, task % shape.heads, first,
         std::min(first + kAttentionLanes, shape.seq));
  });
  // Early keys are seen by most queries, late queries see most keys: the longest tasks start first.
  parallel_tasks(blocks * (kv_heads + heads), [&](std::int64_t task, int thread) {
    const AttentionScratch own = attention_scratch(scratch, thread, shape.head_dim);
    const std::int64_t block = task / (kv_heads + heads);
    const std::int64_t head = task % (kv_heads + heads);
    if (head < kv_heads) {
      keys_block(b, head / shape.kv_heads, head % shape.kv_heads, block * kAttentionLanes, own);
    } else {
      queries_block(b, (head - kv_heads) / shape.heads, (head - kv_heads) % shape.heads,
                    (blocks - 1 - block) * kAttentionLanes, own);
    }
  });
}

}  // namespace

void attention_backward(TensorView dq, TensorView dk, TensorView dv, TensorView d_out,
                        TensorView out, TensorView lse, TensorView q, TensorView k, TensorView v,
                        const AttentionShape& shape, TensorView workspace, Stream& stream) {
  const auto of_queries = [&](const TensorView& view) {
    return token_tensor(view, shape.seq, shape.heads, shape.head_dim);
  };
  const auto of_keys = [&](const TensorView& view) {
    return token_tensor(view, shape.seq, shape.kv_heads, shape.head_dim);
  };
  auto* memory = static_cast<std::byte*>(internal::native_data(workspace));
  const Backward b{.shape = shape,
                   .dq = of_queries(dq),
                   .dk = of_keys(dk),
                   .dv = of_keys(dv),
                   .d_out = of_queries(d_out),
                   .out = of_queries(out),
                   .q = of_queries(q),
                   .k = of_keys(k),
                   .v = of_keys(v),
                   .lse = internal::native<float>(lse),
                   .dots = reinterpret_cast<float*>(memory)};
  enqueue(stream, "attention backward", {dq, dk, dv, workspace}, {},
          [b, memory, bytes = workspace.bytes()] {
            run(b, attention_threads_memory(b.shape, memory, bytes));
          });
}

}  // namespace zero3::cpu
