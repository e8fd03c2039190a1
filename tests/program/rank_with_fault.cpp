// A trainer of three groups that is a rank of MPI, until something goes wrong with it.
//   rank_with_fault FAULT RANK MILLISECONDS auto|messages
// FAULT strikes that rank so long after it has begun: kill, stop, exit, throw, fewer, swap, busy
// (it waits for longer than the others do); missing strikes at once; none: says which of its
// machine it is, and a short training that ends well.
#include <zero3/zero3.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Fault {
  std::string kind;
  int rank;
  std::chrono::milliseconds after;
};

class Trainer {
 public:
  Trainer(zero3::Communicator& communicator, const Fault& fault)
      : fault_(fault),
        strikes_here_(communicator.rank() == fault.rank),
        device_(zero3::make_device({.threads = 1, .shared = true})),
        engine_(*device_, communicator, {}) {
    for (const std::string name : {"block.0", "block.1", "block.2"}) {
      zero3::GroupSpec group{.name = name, .params = {{.name = name + ".w", .shape = {30000}}}};
      const bool last = name == "block.2";
      if (!(last && strikes("missing"))) {
        group.params.push_back({.name = name + ".b", .shape = {7}});
      }
      groups_.push_back(engine_.add_group(group));
    }
    engine_.build();
  }

  void step() {
    {
      const auto scope = engine_.begin_micro_step();
      const bool swaps = due("swap");
      for (std::size_t i = 0; i < groups_.size(); ++i) {
        const std::size_t other = i == 0 ? 1 : i == 1 ? 0 : i;
        const auto full = engine_.gather(groups_[swaps ? other : i]);
        if (due("exit")) std::exit(0);
        if (due("busy")) std::this_thread::sleep_for(std::chrono::minutes(1));
      }
      for (std::size_t i = groups_.size(); i-- > 0;) {
        const auto full = engine_.gather(groups_[i]);
        const auto grads = engine_.grads(groups_[i]);
        if (i == 1 && due("throw")) throw std::runtime_error("no more paper");
      }
    }
    engine_.step({.learning_rate = 0.1});
  }
  [[nodiscard]] bool due(const char* kind) const { return strikes(kind) && Clock::now() >= due_; }

 private:
  [[nodiscard]] bool strikes(const char* kind) const {
    return strikes_here_ && fault_.kind == kind;
  }

  const Fault fault_;
  const bool strikes_here_;
  const Clock::time_point due_ = Clock::now() + fault_.after;
  std::unique_ptr<zero3::Device> device_;
  zero3::Engine engine_;
  std::vector<zero3::GroupId> groups_;
};

void train(zero3::Communicator& communicator, const Fault& fault) {
  Trainer trainer(communicator, fault);
  const int signal = fault.kind == "kill" ? SIGKILL : fault.kind == "stop" ? SIGSTOP : 0;
  if (signal != 0 && communicator.rank() == fault.rank) {
    std::thread([signal, after = fault.after] {
      std::this_thread::sleep_for(after);
      std::raise(signal);
    }).detach();
  }
  const int steps = fault.kind == "none" ? 20 : 1'000'000;
  for (int step = 0; step < steps && !trainer.due("fewer"); ++step) trainer.step();
}

}  // namespace

int main(int, char** arguments) {
  const Fault fault = {.kind = arguments[1],
                       .rank = std::stoi(arguments[2]),
                       .after = std::chrono::milliseconds(std::stoi(arguments[3]))};
  const zero3::MpiOptions options = {.timeout = std::chrono::seconds(fault.kind == "busy" ? 5 : 1),
                                     .path = std::string(arguments[4]) == "messages"
                                                 ? zero3::MpiPath::kMessages
                                                 : zero3::MpiPath::kAuto};
  int rank = -1;
  try {
    const auto communicator =
        zero3::make_mpi_communicator(zero3::resolve_launch(zero3::read_environment()), options);
    rank = communicator->rank();
    const zero3::LocalPlace local = zero3::mpi_local_place();
    if (fault.kind == "none") std::printf("%d: %d of %d\n", rank, local.rank, local.ranks);
    try {
      train(*communicator, fault);
    } catch (const std::exception& error) {
      communicator->abort(error.what());
      throw;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
  return 0;
}
