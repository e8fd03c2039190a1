#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/dropping_device.h"

namespace zero3::test {

/// Which waits the order of operations needs, by vector clocks: a wait adds nothing when everything
/// before its event is already known to come first, by the stream's own past, by its other waits
/// before the next operation, or because a host thread has synchronized. Numbers are those of a
/// WaitCounter that sees the same calls, so a test can drop each needed wait and have the others
/// deleted.
///
/// Knows of streams alone: an order that collectives or Event::synchronize() add is not seen, so
/// that a wait which they make superfluous is still called needed.
class WaitAnalysis final : public StreamObserver {
 public:
  enum class Verdict { kNeeded, kImplied };
  struct Wait {
    std::string stream;
    Verdict verdict = Verdict::kImplied;
  };

  void operates(const Stream& stream) override {
    const std::scoped_lock lock(mutex_);
    ++settle(stream)[&stream];
  }
  void recorded(const Stream& stream, const Event& event) override {
    const std::scoped_lock lock(mutex_);
    points_[event.state()] = settle(stream);
  }
  [[nodiscard]] bool waits(const Stream& stream, const Event& event) override {
    const std::scoped_lock lock(mutex_);
    const auto point = points_.find(event.state());
    pending_[&stream].emplace_back(waits_.size(), point == points_.end() ? Clock() : point->second);
    waits_.push_back({.stream = stream.name()});
    return true;
  }
  void synchronized(const Stream& stream) override {
    const std::scoped_lock lock(mutex_);
    join(hosts_[std::this_thread::get_id()], settle(stream));
  }

  /// All waits so far, in the order of the calls. One that no operation or record follows is
  /// implied.
  [[nodiscard]] std::vector<Wait> waits_so_far() const {
    const std::scoped_lock lock(mutex_);
    return waits_;
  }
  /// Numbers of those that the order needs.
  [[nodiscard]] std::vector<std::int64_t> needed() const {
    const std::scoped_lock lock(mutex_);
    std::vector<std::int64_t> numbers;
    for (std::size_t i = 0; i < waits_.size(); ++i) {
      if (waits_[i].verdict == Verdict::kNeeded) numbers.push_back(static_cast<std::int64_t>(i));
    }
    return numbers;
  }

 private:
  /// Of each stream, how many of its operations are known to come before.
  using Clock = std::map<const Stream*, std::int64_t>;

  static void join(Clock& clock, const Clock& other) {
    for (const auto& [stream, n] : other) clock[stream] = std::max(clock[stream], n);
  }
  static bool covers(const Clock& clock, const Clock& other) {
    return std::all_of(other.begin(), other.end(), [&](const auto& entry) {
      const auto known = clock.find(entry.first);
      return known != clock.end() && known->second >= entry.second;
    });
  }

  /// Judges the stream's waits since its last operation, and returns what comes before the next
  /// one.
  Clock& settle(const Stream& stream) {
    Clock& clock = clocks_[&stream];
    join(clock, hosts_[std::this_thread::get_id()]);
    auto pending = std::exchange(pending_[&stream], {});
    Clock all = clock;
    for (auto& wait : pending) {
      Clock others = clock;
      for (const auto& other : pending) {
        if (&other != &wait) join(others, other.second);
      }
      join(all, wait.second);
      if (covers(others, wait.second)) {
        wait.second.clear();  // of two waits for one point, one is needed
      } else {
        waits_[wait.first].verdict = Verdict::kNeeded;
      }
    }
    clock = std::move(all);
    return clock;
  }

  mutable std::mutex mutex_;
  std::map<const Stream*, Clock> clocks_;
  std::map<std::thread::id, Clock> hosts_;
  std::map<std::shared_ptr<EventState>, Clock> points_;
  std::map<const Stream*, std::vector<std::pair<std::size_t, Clock>>> pending_;
  std::vector<Wait> waits_;
};

/// Drops each of the `needed` waits in turn: `run(seed, observer)` must then differ from `want`, or
/// throw, for some seed.
template <class Run, class Result>
void expect_dropped_waits_noticed(const std::vector<std::int64_t>& needed, const Result& want,
                                  Run run) {
  constexpr std::uint64_t kSeeds = 200;
  for (const std::int64_t wait : needed) {
    std::string dropped;
    bool noticed = false;
    for (std::uint64_t seed = 0; seed < kSeeds && !noticed; ++seed) {
      WaitCounter counter(wait);
      try {
        noticed = run(seed, counter) != want;
      } catch (const std::exception&) {
        noticed = true;
      }
      dropped = counter.dropped();
    }
    EXPECT_TRUE(noticed) << dropped << " is missed by no seed";
  }
}

}  // namespace zero3::test
