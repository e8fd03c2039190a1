// Three dense layers of our own, trained through zero3 and by plain loops: both end with the same
// bits. Started by mpirun -n 2, each process is a rank.
#include <zero3/zero3.h>

#include <cmath>
#include <cstdio>
#include <vector>

using Floats = std::vector<float>;
using In = std::span<const float>;
using Out = std::span<float>;
constexpr std::size_t kWidth = 24, kColumns = kWidth + 1, kRows = 16, kLayers = 3;
constexpr int kSteps = 20, kMicroBatches = 2;
constexpr float kRate = 0.05F, kScale = 1.0F / (kRows * kMicroBatches);
constexpr const char* kNames[kLayers] = {"in", "middle", "out"};

// y = tanh(w · [x 1]), row by row.
void forward(In w, In x, Out y) {
  for (std::size_t r = 0; r < y.size(); r += kWidth) {
    for (std::size_t o = 0; o < kWidth; ++o) {
      float sum = w[o * kColumns + kWidth];
      for (std::size_t i = 0; i < kWidth; ++i) sum += w[o * kColumns + i] * x[r + i];
      y[r + o] = std::tanh(sum);
    }
  }
}

// Adds to dw; d is the gradient of y and becomes that of x.
void backward(In w, In x, In y, Out d, Out dw) {
  for (std::size_t r = 0; r < y.size(); r += kWidth) {
    float dx[kWidth] = {};
    for (std::size_t o = 0; o < kWidth; ++o) {
      const float slope = d[r + o] * (1.0F - y[r + o] * y[r + o]);
      for (std::size_t i = 0; i < kWidth; ++i) dw[o * kColumns + i] += slope * x[r + i];
      for (std::size_t i = 0; i < kWidth; ++i) dx[i] += slope * w[o * kColumns + i];
      dw[o * kColumns + kWidth] += slope;
    }
    std::copy_n(dx, kWidth, &d[r]);
  }
}

// Micro-batch j of a step, and the gradient of its squared error: the target is half of the input.
Floats inputs(int step, int j) {
  Floats x(kRows * kWidth);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(0.37F * float(i) + float(step + j));
  return x;
}
void error(const Floats& x, const Floats& y, Floats& d) {
  for (std::size_t i = 0; i < d.size(); ++i) d[i] = y[i] - 0.5F * x[i];
}

std::vector<Floats> train_sharded(zero3::Communicator& comm, int steps) {
  // Shared: ranks may be processes, which read each other's memory in place.
  const auto device = zero3::make_device({.threads = 1, .shared = comm.world_size() > 1});
  const int micro_steps = kMicroBatches / comm.world_size();
  zero3::Engine engine(*device, comm,
                       {.optimizer = zero3::OptimizerKind::kSgd, .micro_steps = micro_steps});
  std::vector<zero3::GroupId> groups;
  for (const std::string name : kNames) {
    zero3::ParamSpec w{.name = name + ".w", .shape = {kWidth, kColumns}};
    groups.push_back(engine.add_group({.name = name, .params = {w}}));
  }
  engine.build();
  std::vector<Floats> a(kLayers + 1, Floats(kRows * kWidth));
  Floats d(kRows * kWidth);
  zero3::Stream& compute = engine.compute();
  for (int step = 0; step < steps; ++step) {
    for (int micro_step = 0; micro_step < micro_steps; ++micro_step) {
      const auto scope = engine.begin_micro_step();
      const int j = micro_step * comm.world_size() + comm.rank();
      compute.call("inputs", [&a, step, j] { a[0] = inputs(step, j); });
      for (std::size_t l = 0; l < kLayers; ++l) {
        const auto full = engine.gather(groups[l]);  // all-gather, or prefetched
        const auto w = full[0].host_span<float>();
        compute.call("forward", [&a, l, w] { forward(w, a[l], a[l + 1]); });
      }  // released here, in stream order
      compute.call("error", [&] { error(a[0], a[kLayers], d); });
      for (std::size_t l = kLayers; l-- > 0;) {
        const auto full = engine.gather(groups[l]);
        const auto grads = engine.grads(groups[l]);
        const auto w = full[0].host_span<float>(), dw = grads[0].host_span<float>();
        compute.call("backward", [&a, &d, l, w, dw] { backward(w, a[l], a[l + 1], d, dw); });
      }  // the reduce-scatter starts here, behind the next layer
    }
    engine.step({.learning_rate = kRate, .divisor = kRows * kMicroBatches});
  }
  std::vector<Floats> weights;
  for (const std::string name : kNames) weights.push_back(engine.read_parameter(name + ".w"));
  return weights;
}

std::vector<Floats> train_plain(std::vector<Floats> w) {
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Floats> sum(kLayers, Floats(w[0].size()));
    for (int j = 0; j < kMicroBatches; ++j) {
      std::vector<Floats> a(kLayers + 1, inputs(step, j)), dw(kLayers, Floats(w[0].size()));
      Floats d(kRows * kWidth);
      for (std::size_t l = 0; l < kLayers; ++l) forward(w[l], a[l], a[l + 1]);
      error(a[0], a[kLayers], d);
      for (std::size_t l = kLayers; l-- > 0;) backward(w[l], a[l], a[l + 1], d, dw[l]);
      for (std::size_t l = 0; l < kLayers; ++l) {
        for (std::size_t i = 0; i < dw[l].size(); ++i) sum[l][i] += dw[l][i];
      }
    }
    for (std::size_t l = 0; l < kLayers; ++l)
      for (std::size_t i = 0; i < w[l].size(); ++i) w[l][i] -= kRate * (sum[l][i] * kScale);
  }
  return w;
}

int main() {
  const auto plain = train_plain(train_sharded(*zero3::make_self_communicator(), 0));
  bool equal = train_sharded(*zero3::make_self_communicator(), kSteps) == plain;
  const auto train_as_two = [&](zero3::Communicator& comm) {
    const auto two = train_sharded(comm, kSteps);
    if (comm.rank() == 0) equal = equal && two == plain;
  };
  const zero3::Launch launch = zero3::resolve_launch(zero3::read_environment());
  if (launch.world_size == 1) {
    zero3::LocalWorld(2).run(train_as_two);
  } else {
    train_as_two(*zero3::make_mpi_communicator(launch));
  }
  if (launch.rank == 0)
    std::printf("3 layers, %d steps, at one rank, at two and in plain loops: %s\n", kSteps,
                equal ? "the same weights, to the bit" : "THEY DIFFER");
  return equal ? 0 : 1;
}
