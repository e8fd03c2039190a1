#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <zero3/error.h>
#include "cpu/cpu_stream.h"

namespace zero3::internal {
namespace {

/// A gate may throw instead of opening: then whoever waits for it can go on, and meets the error.
bool lets_pass(Gate& gate) {
  try {
    return gate.open();
  } catch (...) {
    return true;
  }
}

class QueueEmpty final : public Gate {
 public:
  explicit QueueEmpty(const Executor::Queue& queue) : queue_(queue) {}
  bool open() override { return queue_.tasks.empty(); }
  void wait() override {}
  std::string describe() const override { return "the end of stream '" + queue_.name + "'"; }

 private:
  const Executor::Queue& queue_;
};

/// [Note: turns] Exactly one host thread holds the turn; it alone touches streams, and it runs
/// device operations itself whenever it waits (and, by the seed's choice, after it enqueued). The
/// turn moves to another host thread by the same choice. All state below is the turn holder's;
/// `mutex_` only orders the hand-over and the arrival of a set of hosts.
class Stepped final : public SteppedExecutor {
 public:
  explicit Stepped(std::uint64_t seed)
      : random_(seed),
        by_priority_(seed % 2 == 1),
        eagerness_(kEagerness[(seed / 2) % std::size(kEagerness)]) {}

  void attach(Queue& queue) override {
    check_turn();
    queues_.push_back({next_key_++, &queue});
  }

  void detach(Queue& queue) noexcept override {
    QueueEmpty end(queue);
    try {
      drive(end);
    } catch (...) {
      skip_all(queue, std::current_exception());
    }
    std::erase_if(queues_, [&](const auto& entry) { return entry.queue == &queue; });
  }

  void submit(Queue& queue, CpuTask task) override {
    check_turn();
    fruitless_polls_ = 0;
    queue.push(std::move(task));
    if (draw(16) == 0) eagerness_ = kEagerness[draw(std::size(kEagerness))];
    while (draw(8) < eagerness_ && advance()) {
    }
  }

  void host_wait(Gate& gate) override {
    check_turn();
    drive(gate);
  }

  void host_poll(Gate& gate) override {
    check_turn();
    const bool streams_can_run = std::any_of(queues_.begin(), queues_.end(),
                                             [](const Entry& e) { return runnable(*e.queue); });
    const auto hosts = static_cast<int>(hosts_.size());
    if (!streams_can_run && ++fruitless_polls_ > kFruitlessPolls * (hosts + 1)) {
      throw DeviceError(concat("deadlock: the host asks again and again for ", gate.describe(),
                               " and nothing can run: ", describe()));
    }
    advance();
  }

  bool runs_by_itself() const override { return false; }
  std::int64_t steps() const override { return steps_; }

 private:
  /// Of 8: how likely the device is to take one more step after something was enqueued. It changes
  /// now and then: an eager device leaves little to overlap, a lazy one never meets a late host.
  static constexpr std::uint64_t kEagerness[] = {0, 1, 3, 7};
  static constexpr int kFruitlessPolls = 256;
  static constexpr int kNobody = -1;

  struct Entry {
    std::uint64_t key;
    Queue* queue;
  };
  struct Host {
    std::uint64_t key;
    std::thread::id thread;
    Gate* gate = nullptr;  ///< what the host waits for
  };
  /// While a host waits others do not give it the turn, unless its gate is open.
  class Blocked {
   public:
    Blocked(Host* host, Gate& gate)
        : host_(host), outer_(host != nullptr ? std::exchange(host->gate, &gate) : nullptr) {}
    ~Blocked() {
      if (host_ != nullptr) host_->gate = outer_;
    }
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;

   private:
    Host* host_;
    Gate* outer_;
  };
  struct Candidate {
    std::uint64_t key;
    Queue* queue;
    int host;
  };

  std::uint64_t draw(std::uint64_t below) { return random_() % below; }

  void check_turn() {
    const std::scoped_lock lock(mutex_);
    ZERO3_CHECK(hosts_.empty() || hosts_.at(turn_).thread == std::this_thread::get_id(),
                "a host thread uses a stepped executor while others do and without its turn; "
                "give it a HostTurn");
  }

  static bool runnable(const Queue& queue) {
    if (queue.tasks.empty()) return false;
    const std::shared_ptr<Gate>& gate = queue.tasks.front().gate;
    return gate == nullptr || lets_pass(*gate);
  }

  /// Runs whatever can run until the gate opens, and may throw what the gate throws.
  void drive(Gate& gate) {
    const Blocked blocked(hosts_.empty() ? nullptr : &hosts_.at(turn_), gate);
    while (!gate.open()) {
      if (advance()) continue;
      throw DeviceError(concat("deadlock: the host waits for ", gate.describe(),
                               " and nothing can run: ", describe()));
    }
  }

  static void skip_all(Queue& queue, const std::exception_ptr& error) {
    while (!queue.tasks.empty()) {
      CpuTask task = std::move(queue.tasks.front());
      queue.tasks.pop_front();
      queue.run(task, error);
    }
  }

  std::vector<Candidate> candidates() {
    std::vector<Candidate> found;
    for (const Entry& entry : queues_) {
      if (runnable(*entry.queue)) found.push_back({entry.key, entry.queue, kNobody});
    }
    for (auto& [index, host] : hosts_) {
      if (index == turn_ || (host.gate != nullptr && !lets_pass(*host.gate))) continue;
      found.push_back({host.key, nullptr, index});
    }
    return found;
  }

  /// Lets one thing go on. False when nothing can.
  bool advance() {
    const std::vector<Candidate> found = candidates();
    if (found.empty()) return false;
    // Hosts that only poll would hand the turn to each other for as long as a priority lasts.
    const bool fair = !by_priority_ || fruitless_polls_ > 0;
    const Candidate chosen = fair ? found[draw(found.size())] : highest(found);
    if (chosen.queue != nullptr) {
      step(*chosen.queue);
    } else {
      hand_over(chosen.host);
    }
    return true;
  }

  /// Uniform choice alone seldom starves a stream for long, which some races need: priorities that
  /// seldom change do.
  const Candidate& highest(const std::vector<Candidate>& found) {
    if (draw(32) == 0) priorities_.clear();
    const auto priority = [this](const Candidate& c) {
      const auto [entry, fresh] = priorities_.try_emplace(c.key, 0);
      if (fresh) entry->second = random_();
      return entry->second;
    };
    const Candidate* best = &found.front();
    for (const Candidate& c : found) {
      if (priority(c) > priority(*best)) best = &c;
    }
    return *best;
  }

  void step(Queue& queue) {
    ++steps_;
    fruitless_polls_ = 0;
    CpuTask& head = queue.tasks.front();
    if (!queue.spoiled && !head.outputs.empty() && !queue.failed()) {
      for (const Output& out : head.outputs) {
        if (out.bytes > 0) std::memset(out.data, 0xff, out.bytes);
      }
      queue.spoiled = true;
      return;
    }
    queue.spoiled = false;
    CpuTask task = std::move(head);
    queue.tasks.pop_front();
    std::exception_ptr gate_error;
    if (task.gate != nullptr) {
      try {
        static_cast<void>(task.gate->open());
      } catch (...) {
        gate_error = std::current_exception();
      }
    }
    queue.run(task, std::move(gate_error));
  }

  void hand_over(int to) {
    std::unique_lock lock(mutex_);
    const int self = std::exchange(turn_, to);
    turn_changed_.notify_all();
    turn_changed_.wait(lock, [&] { return turn_ == self; });
  }

  void enter(int index, int hosts) override {
    ZERO3_CHECK(index >= 0 && index < hosts, "host ", index, " is not one of ", hosts);
    std::unique_lock lock(mutex_);
    ZERO3_CHECK(arrived_.empty() || hosts == expected_, "host ", index, " counts ", hosts,
                " hosts of a stepped executor, others count ", expected_);
    expected_ = hosts;
    const Host host{static_cast<std::uint64_t>(index), std::this_thread::get_id()};
    ZERO3_CHECK(arrived_.try_emplace(index, host).second, "host ", index,
                " of a stepped executor has arrived already; give every thread its own index");
    const std::int64_t set = sets_started_ + 1;
    start_set_if_complete();
    turn_changed_.wait(lock, [&] { return sets_started_ == set && turn_ == index; });
  }

  void leave(int index) override {
    const std::scoped_lock lock(mutex_);
    hosts_.erase(index);
    fruitless_polls_ = 0;
    turn_ = kNobody;
    if (hosts_.empty()) {
      start_set_if_complete();
    } else {
      give_turn_to_any();
    }
  }

  void start_set_if_complete() {
    if (!hosts_.empty() || std::ssize(arrived_) != expected_) return;
    hosts_.swap(arrived_);
    ++sets_started_;
    give_turn_to_any();
  }

  void give_turn_to_any() {
    turn_ = std::next(hosts_.begin(), static_cast<std::ptrdiff_t>(draw(hosts_.size())))->first;
    turn_changed_.notify_all();
  }

  std::string describe() {
    std::string text;
    const auto separator = [&] { return text.empty() ? "" : "; "; };
    for (const Entry& entry : queues_) {
      if (entry.queue->tasks.empty()) continue;
      const CpuTask& head = entry.queue->tasks.front();
      text += concat(separator(), "stream '", entry.queue->name, "' of rank ", entry.queue->rank,
                     " holds '", head.name, "'",
                     head.gate != nullptr ? " for " + head.gate->describe() : "");
    }
    for (const auto& [index, host] : hosts_) {
      if (index == turn_ || host.gate == nullptr) continue;
      text += concat(separator(), "host ", index, " waits for ", host.gate->describe());
    }
    return text.empty() ? "all streams are empty" : text;
  }

  std::mt19937_64 random_;
  bool by_priority_;
  std::uint64_t eagerness_;
  std::uint64_t next_key_ = std::uint64_t{1} << 32;  // above those of hosts
  std::vector<Entry> queues_;
  std::map<int, Host> hosts_;
  std::map<std::uint64_t, std::uint64_t> priorities_;
  std::int64_t steps_ = 0;
  int fruitless_polls_ = 0;

  std::mutex mutex_;
  std::condition_variable turn_changed_;
  int turn_ = kNobody;
  std::map<int, Host> arrived_;  ///< the next set, until it is complete
  int expected_ = 0;             ///< its size
  std::int64_t sets_started_ = 0;
};

}  // namespace

SteppedExecutor::HostTurn::HostTurn(SteppedExecutor& executor, int index, int hosts)
    : executor_(executor), index_(index) {
  executor_.enter(index_, hosts);
}

SteppedExecutor::HostTurn::~HostTurn() {
  executor_.leave(index_);
}

std::unique_ptr<SteppedExecutor> make_stepped_executor(std::uint64_t seed) {
  return std::make_unique<Stepped>(seed);
}

}  // namespace zero3::internal
