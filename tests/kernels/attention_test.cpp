#include <zero3/attention.h>

#include <gtest/gtest.h>

#include <limits>

#include <support/contains.h>
#include <support/thrown.h>

#include "values.h"

namespace zero3::test {
namespace {

template <class T>
struct Input {
  AttentionShape shape;
  std::vector<T> q, k, v, d_out;

  explicit Input(AttentionShape s, float deviation = 1.0F)
      : shape(s),
        q(convert<T>(normal_values(queries(), 1, deviation))),
        k(convert<T>(normal_values(keys(), 2, deviation))),
        v(convert<T>(normal_values(keys(), 3))),
        d_out(convert<T>(normal_values(queries(), 4))) {}

  [[nodiscard]] std::int64_t queries() const {
    return shape.batch * shape.seq * shape.heads * shape.head_dim;
  }
  [[nodiscard]] std::int64_t keys() const {
    return shape.batch * shape.seq * shape.kv_heads * shape.head_dim;
  }
  [[nodiscard]] std::int64_t rows() const { return shape.batch * shape.heads * shape.seq; }
};

template <class T>
struct Result {
  std::vector<T> out, dq, dk, dv;
  std::vector<float> lse;
};

template <class T>
Result<T> run(Bench& bench, const Input<T>& in, int workspace_threads = 3) {
  const DType dtype = kDTypeOf<T>;
  const Buffer q = bench.upload(in.q), k = bench.upload(in.k), v = bench.upload(in.v),
               d_out = bench.upload(in.d_out);
  const Buffer out = bench.allocate(in.queries(), dtype), lse = bench.allocate(in.rows());
  const Buffer dq = bench.allocate(in.queries(), dtype), dk = bench.allocate(in.keys(), dtype);
  const Buffer dv = bench.allocate(in.keys(), dtype);
  const Buffer workspace = bench.allocate(
      attention_workspace_bytes(in.shape, dtype, workspace_threads).count(), DType::kU8);
  attention_forward(out.view(), lse.view(), q.view(), k.view(), v.view(), in.shape,
                    workspace.view(), *bench.stream);
  attention_backward(dq.view(), dk.view(), dv.view(), d_out.view(), out.view(), lse.view(),
                     q.view(), k.view(), v.view(), in.shape, workspace.view(), *bench.stream);
  return {bench.download<T>(out.view()), bench.download<T>(dq.view()), bench.download<T>(dk.view()),
          bench.download<T>(dv.view()), bench.download<float>(lse.view())};
}

/// Attention in double, one query after another.
struct Reference {
  AttentionShape shape;
  double scale;
  std::vector<double> out, lse, dq, dk, dv;

  template <class Q, class K, class V, class D>
  Reference(const AttentionShape& s, const Q& q, const K& k, const V& v, const D& d_out)
      : shape(s),
        scale(s.scale != 0 ? static_cast<double>(s.scale)
                           : 1.0 / std::sqrt(static_cast<double>(s.head_dim))),
        out(q.size()),
        lse(static_cast<std::size_t>(s.batch * s.heads * s.seq)),
        dq(q.size()),
        dk(k.size()),
        dv(v.size()) {
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t h = 0; h < s.heads; ++h) {
        for (std::int64_t t = 0; t < s.seq; ++t) add_query(b, h, t, q, k, v, d_out);
      }
    }
  }

  [[nodiscard]] std::size_t query_at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return static_cast<std::size_t>(((b * shape.seq + t) * shape.heads + h) * shape.head_dim);
  }
  [[nodiscard]] std::size_t key_at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return static_cast<std::size_t>(
        ((b * shape.seq + t) * shape.kv_heads + h / (shape.heads / shape.kv_heads)) *
        shape.head_dim);
  }

  template <class X, class Y>
  [[nodiscard]] double dot(const X& x, std::size_t i, const Y& y, std::size_t j) const {
    double sum = 0;
    for (std::size_t c = 0; c < static_cast<std::size_t>(shape.head_dim); ++c) {
      sum += static_cast<double>(x[i + c]) * static_cast<double>(y[j + c]);
    }
    return sum;
  }

  template <class Q, class K, class V, class D>
  void add_query(std::int64_t b, std::int64_t h, std::int64_t t, const Q& q, const K& k, const V& v,
                 const D& d_out) {
    const std::size_t at = query_at(b, h, t);
    const auto head_dim = static_cast<std::size_t>(shape.head_dim);
    std::vector<double> weights;
    for (std::int64_t u = 0; u <= t; ++u) weights.push_back(scale * dot(q, at, k, key_at(b, h, u)));
    const double top = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - top);
    lse[static_cast<std::size_t>((b * shape.heads + h) * shape.seq + t)] = top + std::log(sum);
    for (std::int64_t u = 0; u <= t; ++u) {
      const double weight = weights[static_cast<std::size_t>(u)] /= sum;
      for (std::size_t c = 0; c < head_dim; ++c)
        out[at + c] += weight * static_cast<double>(v[key_at(b, h, u) + c]);
    }
    const double mean = dot(d_out, at, out, at);
    for (std::int64_t u = 0; u <= t; ++u) {
      const std::size_t key = key_at(b, h, u);
      const double weight = weights[static_cast<std::size_t>(u)];
      const double d_score = weight * (dot(d_out, at, v, key) - mean) * scale;
      for (std::size_t c = 0; c < head_dim; ++c) {
        dv[key + c] += weight * static_cast<double>(d_out[at + c]);
        dq[at + c] += d_score * static_cast<double>(k[key + c]);
        dk[key + c] += d_score * static_cast<double>(q[at + c]);
      }
    }
  }
};

template <class T>
Reference reference(const Input<T>& in) {
  return Reference(in.shape, convert<float>(in.q), convert<float>(in.k), convert<float>(in.v),
                   convert<float>(in.d_out));
}

std::string text(const AttentionShape& s) {
  return concat("batch ", s.batch, " seq ", s.seq, " heads ", s.heads, '/', s.kv_heads,
                " head_dim ", s.head_dim);
}

/// Around the panel widths 24 and 48, the tiles of 128, the blocks of 192, with and without shared
/// heads.
const AttentionShape kShapes[] = {{1, 1, 1, 1, 1},    {2, 2, 2, 1, 3},     {1, 7, 4, 2, 8},
                                  {1, 23, 1, 1, 16},  {2, 24, 2, 2, 4},    {1, 25, 3, 1, 9},
                                  {1, 47, 2, 1, 5},   {1, 48, 1, 1, 64},   {1, 49, 2, 2, 7},
                                  {1, 127, 2, 1, 24}, {1, 128, 1, 1, 13},  {1, 129, 2, 1, 17},
                                  {1, 191, 1, 1, 8},  {2, 192, 2, 1, 10},  {1, 193, 1, 1, 32},
                                  {1, 257, 3, 3, 6},  {1, 321, 2, 1, 25},  {1, 389, 2, 2, 12},
                                  {1, 33, 2, 1, 128}, {1, 140, 1, 1, 256}, {1, 131, 1, 1, 255}};

// Sums of up to 389 terms of size 1 in fp32, of which random signs let a few units remain.
constexpr double kFloatTolerance = 2e-5;
// The result's own rounding is 2^-9 of it. The outputs that the backward reads are rounded as well:
// that shifts Σ d_out · out by about 2^-9 · sqrt(head_dim), which the scale takes back, and each
// gradient by a few times 2^-9.
constexpr double kHalfTolerance = 1.0 / 64.0;

TEST(Attention, ForwardMatchesDouble) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const AttentionShape& shape : kShapes) {
    const Input<float> in(shape);
    const Reference want = reference(in);
    const Result<float> got = run(bench, in);
    EXPECT_LT(relative_error(got.out, want.out), 4e-6) << text(shape);
    EXPECT_LT(relative_error(got.lse, want.lse), 2e-6) << text(shape);
  }
}

TEST(Attention, BackwardMatchesDouble) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const AttentionShape& shape : kShapes) {
    const Input<float> in(shape);
    const Reference want = reference(in);
    const Result<float> got = run(bench, in);
    EXPECT_LT(relative_error(got.dq, want.dq), kFloatTolerance) << text(shape);
    EXPECT_LT(relative_error(got.dk, want.dk), kFloatTolerance) << text(shape);
    EXPECT_LT(relative_error(got.dv, want.dv), kFloatTolerance) << text(shape);
  }
}

TEST(Attention, BackwardMatchesFiniteDifferences) {
  Bench bench;
  const Input<float> in({1, 6, 4, 2, 3});
  const Result<float> got = run(bench, in);
  const auto loss = [&](const auto& q, const auto& k, const auto& v) {
    const Reference at(in.shape, q, k, v, in.d_out);
    double sum = 0;
    for (std::size_t i = 0; i < at.out.size(); ++i)
      sum += at.out[i] * static_cast<double>(in.d_out[i]);
    return sum;
  };
  const auto dq = finite_differences(in.q, [&](const auto& q) { return loss(q, in.k, in.v); });
  const auto dk = finite_differences(in.k, [&](const auto& k) { return loss(in.q, k, in.v); });
  const auto dv = finite_differences(in.v, [&](const auto& v) { return loss(in.q, in.k, v); });
  EXPECT_LT(relative_error(got.dq, dq), 1e-5);
  EXPECT_LT(relative_error(got.dk, dk), 1e-5);
  EXPECT_LT(relative_error(got.dv, dv), 1e-5);
}

TEST(Attention, Bf16MatchesDouble) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const AttentionShape& shape : kShapes) {
    const Input<BFloat16> in(shape);
    const Reference want = reference(in);
    const Result<BFloat16> got = run(bench, in);
    EXPECT_LT(relative_error(got.out, want.out), 1.0 / 256.0) << text(shape);
    EXPECT_LT(relative_error(got.lse, want.lse), 2e-6) << text(shape);
    EXPECT_LT(relative_error(got.dq, want.dq), kHalfTolerance) << text(shape);
    EXPECT_LT(relative_error(got.dk, want.dk), kHalfTolerance) << text(shape);
    EXPECT_LT(relative_error(got.dv, want.dv), kHalfTolerance) << text(shape);
  }
}

TEST(Attention, ScaleIsUsed) {
  Bench bench;
  const Input<float> in({1, 50, 2, 1, 8, 0.9F});
  const Reference want = reference(in);
  const Result<float> got = run(bench, in);
  EXPECT_LT(relative_error(got.out, want.out), 4e-6);
  EXPECT_LT(relative_error(got.dq, want.dq), kFloatTolerance);
  EXPECT_LT(relative_error(got.dk, want.dk), kFloatTolerance);
}

// Scores of several hundreds overflow a plain exponential, and move the running maximum from tile
// to tile.
TEST(Attention, LargeScoresAreExact) {
  Bench bench;
  const Input<float> in({1, 300, 1, 1, 16}, 12.0F);
  const Reference want = reference(in);
  const Result<float> got = run(bench, in);
  EXPECT_LT(relative_error(got.out, want.out), 1e-3);
  EXPECT_LT(relative_error(got.lse, want.lse), 1e-6);
  EXPECT_LT(relative_error(got.dv, want.dv), 1e-2);
}

TEST(Attention, TheFirstTokenSeesItself) {
  Bench bench;
  const Input<float> in({2, 5, 2, 2, 4});
  const Result<float> got = run(bench, in);
  const auto width = static_cast<std::size_t>(in.shape.heads * in.shape.head_dim);
  for (std::size_t begin = 0; begin < in.v.size(); begin += 5 * width) {
    for (std::size_t c = 0; c < width; ++c) EXPECT_EQ(got.out[begin + c], in.v[begin + c]);
  }
}

// Changing the last tokens changes no bit of what comes before, in the same tile or another.
TEST(Attention, LaterTokensAreInvisible) {
  Bench bench;
  Input<float> in({1, 205, 2, 1, 8});
  const Result<float> before = run(bench, in);
  constexpr std::size_t kFirst = 180;
  for (std::size_t i = kFirst * 8; i < in.k.size(); ++i) in.k[i] = in.v[i] = 3.0F;
  const Result<float> after = run(bench, in);
  const auto earlier = [&](const std::vector<float>& out) {
    return bits_of(std::vector<float>(out.begin(), out.begin() + kFirst * 16));
  };
  EXPECT_EQ(earlier(after.out), earlier(before.out));
  EXPECT_EQ(earlier(after.dq), earlier(before.dq));
}

// A sequence's bits are its own: not those of its place in the batch.
TEST(Attention, SequencesOfABatchAreIndependent) {
  Bench bench(DeviceKind::kCpu, 2);
  const Input<float> both({2, 100, 2, 1, 8});
  Input<float> second({1, 100, 2, 1, 8});
  const auto tail = [](const std::vector<float>& values) {
    return std::vector<float>(values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                              values.end());
  };
  second.q = tail(both.q);
  second.k = tail(both.k);
  second.v = tail(both.v);
  second.d_out = tail(both.d_out);
  const Result<float> got = run(bench, both), want = run(bench, second);
  EXPECT_EQ(bits_of(tail(got.out)), bits_of(want.out));
  EXPECT_EQ(bits_of(tail(got.dk)), bits_of(want.dk));
}

template <class T>
std::vector<T> everything(Bench& bench, const Input<T>& in) {
  Result<T> result = run(bench, in);
  std::vector<T> all = std::move(result.out);
  for (const auto& part : {result.dq, result.dk, result.dv})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(Attention, SameBitsForAnyThreads) {
  for (const AttentionShape& shape : {AttentionShape{1, 700, 3, 1, 16}, {3, 65, 4, 2, 20}}) {
    const Input<float> in(shape);
    expect_same_bits_for_any_threads([&](Bench& bench) { return everything(bench, in); });
  }
}

TEST(Attention, SameBitsForAnyThreadsInBf16) {
  const Input<BFloat16> in({1, 400, 2, 1, 16});
  expect_same_bits_for_any_threads([&](Bench& bench) { return everything(bench, in); });
}

TEST(Attention, SameBitsOnEveryDevice) {
  const Input<float> in({2, 50, 2, 1, 8});
  expect_same_bits_on_every_device([&](Bench& bench) { return everything(bench, in); });
}

TEST(Attention, EmptyShapesAreFine) {
  Bench bench;
  for (const AttentionShape& shape : {AttentionShape{0, 5, 2, 1, 8}, {3, 0, 2, 1, 8}}) {
    EXPECT_TRUE(run(bench, Input<float>(shape)).out.empty());
  }
}

TEST(Attention, NanReachesTheResult) {
  Bench bench;
  Input<float> in({1, 30, 1, 1, 4});
  in.q[4 * 20] = std::numeric_limits<float>::quiet_NaN();
  const Result<float> got = run(bench, in);
  EXPECT_TRUE(std::isnan(got.out[4 * 20]));
  EXPECT_TRUE(std::isnan(got.dq[4 * 20]));
  EXPECT_FALSE(std::isnan(got.out[4 * 21]));
}

// 32 times the tokens of which 32 · 32 times the scores: the scratch grows by the 4 bytes per query
// alone.
TEST(Attention, WorkspaceHoldsNoScores) {
  const auto bytes = [](std::int64_t seq) {
    return attention_workspace_bytes({1, seq, 6, 6, 64}, DType::kBF16, 2);
  };
  EXPECT_EQ(bytes(32768) - bytes(1024), Bytes(4 * 6 * 31 * 1024));
}

TEST(Attention, TooSmallAWorkspaceIsRefused) {
  Bench bench;
  const AttentionShape shape{1, 4, 1, 1, 8};
  const Buffer q = bench.allocate(32), k = bench.allocate(32), v = bench.allocate(32),
               out = bench.allocate(32);
  const Buffer lse = bench.allocate(4);
  const Bytes needed = attention_workspace_bytes(shape, DType::kF32, 1);
  const Buffer workspace = bench.allocate(needed.count() - 4, DType::kU8);
  const std::string error = thrown<UsageError>([&] {
    attention_forward(out.view(), lse.view(), q.view(), k.view(), v.view(), shape, workspace.view(),
                      *bench.stream);
  });
  EXPECT_TRUE(contains(error, {"attention_forward", "workspace", "attention_workspace_bytes"}));
}

TEST(Attention, AWorkspaceForFewerThreadsIsRefused) {
  Bench bench(DeviceKind::kCpu, 3);
  const Input<float> in({1, 4, 1, 1, 8});
  const std::string error = thrown<UsageError>([&] { static_cast<void>(run(bench, in, 2)); });
  EXPECT_TRUE(contains(error, {"workspace", "3 threads"}));
}

TEST(Attention, WrongShapesAreNamed) {
  Bench bench;
  const Buffer q = bench.allocate(32), k = bench.allocate(32), out = bench.allocate(32),
               lse = bench.allocate(4);
  const Buffer half = bench.allocate(32, DType::kBF16),
               workspace = bench.allocate(1 << 20, DType::kU8);
  const auto forward = [&](const AttentionShape& shape, const TensorView& keys) {
    return thrown<UsageError>([&] {
      attention_forward(out.view(), lse.view(), q.view(), keys, keys, shape, workspace.view(),
                        *bench.stream);
    });
  };
  EXPECT_TRUE(contains(forward({1, 4, 3, 2, 8}, k.view()), {"3 heads", "2 key/value heads"}));
  EXPECT_TRUE(contains(forward({1, 4, 1, 1, 257}, k.view()), {"head_dim", "257", "256"}));
  EXPECT_TRUE(contains(forward({1, 5, 1, 1, 8}, k.view()), {"q has 32", "40"}));
  EXPECT_TRUE(contains(forward({1, 4, 1, 1, 8}, half.view()), {"k is bf16", "fp32"}));
  EXPECT_TRUE(contains(forward({1, 4, 1, 1, 8}, q.view().slice(0, 16)), {"k has 16", "32"}));
}

TEST(Attention, ResultsMayNotOverwriteInputs) {
  Bench bench;
  const AttentionShape shape{1, 4, 1, 1, 8};
  const Buffer q = bench.allocate(32), k = bench.allocate(32), v = bench.allocate(32),
               lse = bench.allocate(4);
  const Buffer workspace =
      bench.allocate(attention_workspace_bytes(shape, DType::kF32, 1).count(), DType::kU8);
  const std::string error = thrown<UsageError>([&] {
    attention_forward(q.view(), lse.view(), q.view(), k.view(), v.view(), shape, workspace.view(),
                      *bench.stream);
  });
  EXPECT_TRUE(contains(error, {"out and q share memory"}));
}

}  // namespace
}  // namespace zero3::test
