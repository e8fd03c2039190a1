#include <zero3/rms_norm.h>

#include <gtest/gtest.h>

#include <support/contains.h>
#include <support/thrown.h>

#include "data/torch_reference.inc"
#include "values.h"

namespace zero3::test {
namespace {

template <class T>
struct Input {
  RmsNormShape shape;
  std::vector<T> x, dy;
  std::vector<float> weight;

  Input(std::int64_t rows, std::int64_t width, std::int64_t granule_rows = 16)
      : shape{.rows = rows, .width = width, .granule_rows = granule_rows},
        x(convert<T>(normal_values(rows * width, 1))),
        dy(convert<T>(normal_values(rows * width, 2))),
        weight(normal_values(width, 3)) {}
};

template <class T>
struct Result {
  std::vector<T> y, dx;
  std::vector<float> rstd, dweight;
};

/// Forward, then backward onto zeros in tiles of `tile_rows` rows (0: all at once).
template <class T>
Result<T> run(Bench& bench, const Input<T>& in, std::int64_t tile_rows = 0,
              int workspace_threads = 1) {
  const std::int64_t rows = in.shape.rows, width = in.shape.width;
  const Buffer x = bench.upload(in.x), dy = bench.upload(in.dy), w = bench.upload(in.weight);
  const Buffer y = bench.allocate(rows * width, kDTypeOf<T>), rstd = bench.allocate(rows);
  const Buffer dx = bench.allocate(rows * width, kDTypeOf<T>);
  const Buffer dweight = bench.upload(std::vector<float>(static_cast<std::size_t>(width)));
  const Buffer workspace =
      bench.allocate(rms_norm_workspace_bytes(in.shape, workspace_threads).count(), DType::kU8);
  rms_norm_forward(y.view(), rstd.view(), x.view(), w.view(), in.shape, *bench.stream);
  const std::int64_t step = tile_rows > 0 ? tile_rows : std::max<std::int64_t>(1, rows);
  for (std::int64_t row = 0; row < rows; row += step) {
    RmsNormShape tile = in.shape;
    tile.rows = std::min(step, rows - row);
    const auto part = [&](const Buffer& buffer) {
      return buffer.view().slice(row * width, tile.rows * width);
    };
    rms_norm_backward(part(dx), dweight.view(), part(dy), part(x),
                      rstd.view().slice(row, tile.rows), w.view(), tile, Into::kReplace,
                      workspace.view(), *bench.stream);
  }
  return {bench.download<T>(y.view()), bench.download<T>(dx.view()),
          bench.download<float>(rstd.view()), bench.download<float>(dweight.view())};
}

template <class Row>
double root_mean_square(const Row& x, std::size_t begin, std::size_t width, double eps) {
  double squares = 0;
  for (std::size_t i = 0; i < width; ++i) {
    squares += static_cast<double>(x[begin + i]) * static_cast<double>(x[begin + i]);
  }
  return std::sqrt(squares / static_cast<double>(width) + eps);
}

/// Σ dy · y in double, for given inputs and weights.
template <class X, class W>
double loss(const Input<float>& in, const X& x, const W& weight) {
  const auto width = static_cast<std::size_t>(in.shape.width);
  double sum = 0;
  for (std::size_t begin = 0; begin < x.size(); begin += width) {
    const double rms = root_mean_square(x, begin, width, in.shape.eps);
    for (std::size_t i = 0; i < width; ++i) {
      sum += static_cast<double>(in.dy[begin + i]) * static_cast<double>(x[begin + i]) / rms *
             static_cast<double>(weight[i]);
    }
  }
  return sum;
}

constexpr std::int64_t kWidths[] = {1, 2, 7, 8, 9, 31, 32, 33, 64, 127, 384, 1031};

TEST(RmsNorm, ForwardMatchesDouble) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t width : kWidths) {
    const Input<float> in(5, width);
    const auto w = static_cast<std::size_t>(width);
    std::vector<double> want, want_rstd;
    for (std::size_t begin = 0; begin < in.x.size(); begin += w) {
      const double rms = root_mean_square(in.x, begin, w, in.shape.eps);
      want_rstd.push_back(1.0 / rms);
      for (std::size_t i = 0; i < w; ++i) {
        want.push_back(static_cast<double>(in.x[begin + i]) / rms *
                       static_cast<double>(in.weight[i]));
      }
    }
    const Result<float> got = run(bench, in);
    EXPECT_LT(relative_error(got.y, want), 5e-7) << width;
    EXPECT_LT(relative_error(got.rstd, want_rstd, 1e-3), 5e-7) << width;
  }
}

TEST(RmsNorm, MatchesTorch) {
  namespace torch = torch_reference;
  Bench bench;
  Input<float> in(5, 9);
  in.x = torch::kNormX;
  in.dy = torch::kNormDy;
  in.weight = torch::kNormWeight;
  const Result<float> got = run(bench, in);
  const auto error = [](const std::vector<float>& a, const std::vector<float>& b) {
    return relative_error(a, std::vector<double>(b.begin(), b.end()));
  };
  EXPECT_LT(error(got.y, torch::kNormY), 5e-7);
  EXPECT_LT(error(got.dx, torch::kNormDx), 1e-6);
  EXPECT_LT(error(got.dweight, torch::kNormDweight), 1e-6);
}

TEST(RmsNorm, InputGradientMatchesFiniteDifferences) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t width : {1, 7, 8, 33}) {
    const Input<float> in(6, width);
    const auto want =
        finite_differences(in.x, [&](const auto& x) { return loss(in, x, in.weight); });
    EXPECT_LT(relative_error(run(bench, in).dx, want), 5e-6) << width;
  }
}

TEST(RmsNorm, WeightGradientMatchesFiniteDifferences) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t rows : {1, 15, 16, 17, 70}) {
    const Input<float> in(rows, 19);
    const auto want =
        finite_differences(in.weight, [&](const auto& w) { return loss(in, in.x, w); });
    EXPECT_LT(relative_error(run(bench, in).dweight, want), 5e-6) << rows;
  }
}

TEST(RmsNorm, NoRowsLeaveTheWeightGradientAlone) {
  Bench bench;
  EXPECT_EQ(run(bench, Input<float>(0, 5)).dweight, std::vector<float>(5));
}

TEST(RmsNorm, WeightGradientIsAddedOneGranuleAtATime) {
  Bench bench;
  const Input<float> in(48, 33);
  std::vector<float> want(33);
  for (std::int64_t granule = 0; granule < 3; ++granule) {
    Input<float> part(16, 33);
    part.weight = in.weight;
    part.x.assign(in.x.begin() + granule * 16 * 33, in.x.begin() + (granule + 1) * 16 * 33);
    part.dy.assign(in.dy.begin() + granule * 16 * 33, in.dy.begin() + (granule + 1) * 16 * 33);
    const auto sum = run(bench, part).dweight;
    for (std::size_t i = 0; i < want.size(); ++i) want[i] += sum[i];
  }
  EXPECT_EQ(bits_of(run(bench, in).dweight), bits_of(want));
}

TEST(RmsNorm, TilesOfWholeGranulesGiveTheSameBits) {
  Bench bench(DeviceKind::kCpu, 2);
  for (const std::int64_t granule : {1, 16, 40}) {
    const Input<float> in(201, 65, granule);
    const auto want = bits_of(run(bench, in).dweight);
    for (const std::int64_t granules : {1, 2, 3}) {
      EXPECT_EQ(bits_of(run(bench, in, granules * granule).dweight), want) << granule;
    }
  }
}

TEST(RmsNorm, MoreWorkspaceGivesTheSameBits) {
  Bench bench(DeviceKind::kCpu, 3);
  const Input<float> in(201, 65);
  EXPECT_EQ(bits_of(run(bench, in, 0, 7).dweight), bits_of(run(bench, in, 0, 1).dweight));
}

TEST(RmsNorm, SameBitsForAnyThreads) {
  const Input<float> in(201, 129);
  expect_same_bits_for_any_threads([&](Bench& bench) { return run(bench, in, 0, 4).dweight; });
  expect_same_bits_for_any_threads([&](Bench& bench) { return run(bench, in).dx; });
  expect_same_bits_for_any_threads([&](Bench& bench) { return run(bench, in).y; });
}

TEST(RmsNorm, SameBitsOnEveryDevice) {
  const Input<BFloat16> in(35, 33);
  expect_same_bits_on_every_device([&](Bench& bench) { return run(bench, in).dx; });
  expect_same_bits_on_every_device([&](Bench& bench) { return run(bench, in).dweight; });
}

TEST(RmsNorm, Bf16IsComputedInFp32AndRoundedOnce) {
  Bench bench;
  const Input<BFloat16> in(20, 33);
  Input<float> wide(20, 33);
  wide.x = convert<float>(in.x);
  wide.dy = convert<float>(in.dy);
  const Result<BFloat16> got = run(bench, in);
  const Result<float> want = run(bench, wide);
  EXPECT_EQ(bits_of(got.y), bits_of(convert<BFloat16>(want.y)));
  EXPECT_EQ(bits_of(got.dx), bits_of(convert<BFloat16>(want.dx)));
  EXPECT_EQ(bits_of(got.dweight), bits_of(want.dweight));
}

TEST(RmsNorm, Bf16WeightCountsAsItsValue) {
  Bench bench;
  const auto narrow = convert<BFloat16>(normal_values(33, 3));
  Input<float> in(3, 33);
  in.weight = convert<float>(narrow);
  const Buffer x = bench.upload(in.x), w = bench.upload(narrow);
  const Buffer y = bench.allocate(99), rstd = bench.allocate(3);
  rms_norm_forward(y.view(), rstd.view(), x.view(), w.view(), in.shape, *bench.stream);
  EXPECT_EQ(bits_of(bench.download<float>(y.view())), bits_of(run(bench, in).y));
}

TEST(RmsNorm, YMayBeX) {
  SteppedBench stepped;
  Bench& bench = stepped.bench;
  const Input<float> in(5, 33);
  const Buffer x = bench.upload(in.x), w = bench.upload(in.weight), rstd = bench.allocate(5);
  rms_norm_forward(x.view(), rstd.view(), x.view(), w.view(), in.shape, *bench.stream);
  EXPECT_EQ(bits_of(bench.download<float>(x.view())), bits_of(run(bench, in).y));
}

/// The buffers of a backward pass, for tests that call it in their own way.
struct Backward {
  explicit Backward(Bench& b, const Input<float>& input)
      : bench(b),
        in(input),
        result(run(b, input)),
        x(b.upload(in.x)),
        dy(b.upload(in.dy)),
        w(b.upload(in.weight)),
        rstd(b.upload(result.rstd)),
        dweight(b.upload(std::vector<float>(in.weight.size()))),
        workspace(b.allocate(rms_norm_workspace_bytes(in.shape, 1).count(), DType::kU8)) {}

  void operator()(TensorView dx, TensorView dweight_view, Into into, TensorView scratch) {
    rms_norm_backward(dx, dweight_view, dy.view(), x.view(), rstd.view(), w.view(), in.shape, into,
                      scratch, *bench.stream);
  }

  Bench& bench;
  Input<float> in;
  Result<float> result;
  Buffer x, dy, w, rstd, dweight, workspace;
};

TEST(RmsNorm, DxMayBeDy) {
  SteppedBench stepped;
  Bench& bench = stepped.bench;
  Backward backward(bench, Input<float>(40, 33));
  backward(backward.dy.view(), backward.dweight.view(), Into::kReplace, backward.workspace.view());
  EXPECT_EQ(bits_of(bench.download<float>(backward.dy.view())), bits_of(backward.result.dx));
  EXPECT_EQ(bits_of(bench.download<float>(backward.dweight.view())),
            bits_of(backward.result.dweight));
}

TEST(RmsNorm, AccumulateAddsToDx) {
  SteppedBench stepped;
  Bench& bench = stepped.bench;
  Backward backward(bench, Input<float>(40, 33));
  const auto before = normal_values(40 * 33, 9);
  const Buffer dx = bench.upload(before);
  backward(dx.view(), backward.dweight.view(), Into::kAccumulate, backward.workspace.view());
  std::vector<float> want = before;
  for (std::size_t i = 0; i < want.size(); ++i) want[i] += backward.result.dx[i];
  EXPECT_EQ(bits_of(bench.download<float>(dx.view())), bits_of(want));
}

TEST(RmsNorm, AFrozenWeightNeedsNoWorkspace) {
  Bench bench(DeviceKind::kCpu, 2);
  Backward backward(bench, Input<float>(40, 33));
  const Buffer dx = bench.allocate(40 * 33);
  backward(dx.view(), {}, Into::kReplace, {});
  EXPECT_EQ(bits_of(bench.download<float>(dx.view())), bits_of(backward.result.dx));
}

TEST(RmsNorm, GradientsMayBeWiderThanActivations) {
  Bench bench;
  const Input<BFloat16> in(20, 33);
  Input<float> wide(20, 33);
  wide.x = convert<float>(in.x);
  const Result<float> want = run(bench, wide);
  const Buffer x = bench.upload(in.x), dy = bench.upload(wide.dy), w = bench.upload(in.weight);
  const Buffer rstd = bench.upload(want.rstd), dx = bench.allocate(20 * 33);
  rms_norm_backward(dx.view(), {}, dy.view(), x.view(), rstd.view(), w.view(), in.shape,
                    Into::kReplace, {}, *bench.stream);
  EXPECT_EQ(bits_of(bench.download<float>(dx.view())), bits_of(want.dx));
}

TEST(RmsNorm, RefusesTooSmallAWorkspace) {
  Bench bench;
  Backward backward(bench, Input<float>(40, 33));
  const Buffer dx = bench.allocate(40 * 33);
  const TensorView less = backward.workspace.view().slice(0, backward.workspace.size().count() - 1);
  const auto error = thrown<UsageError>(
      [&] { backward(dx.view(), backward.dweight.view(), Into::kReplace, less); });
  EXPECT_TRUE(contains(error, {"rms_norm_backward", "workspace", "131", "132"}));
}

TEST(RmsNorm, RefusesSizesThatDoNotFit) {
  Bench bench;
  const Buffer x = bench.allocate(30), y = bench.allocate(30), rstd = bench.allocate(3);
  const Buffer w = bench.allocate(9);
  const auto error = thrown<UsageError>([&] {
    rms_norm_forward(y.view(), rstd.view(), x.view(), w.view(), {.rows = 3, .width = 10},
                     *bench.stream);
  });
  EXPECT_TRUE(contains(error, {"rms_norm_forward", "weight", "9", "10"}));
}

}  // namespace
}  // namespace zero3::test
