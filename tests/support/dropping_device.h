#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <zero3/error.h>
#include <zero3/internal/cpu_stream.h>
#include "support/observed_device.h"

namespace zero3::test {

/// Counts the waits of all streams of the devices that share it, in the order of the calls, and
/// drops one: a test of a higher layer drops each in turn and expects some seed to notice. A wait
/// for a default or a passed event counts too.
///
/// With several host threads the order of their calls is the seed's: give each rank a counter of
/// its own.
class WaitCounter final : public StreamObserver {
 public:
  static constexpr std::int64_t kDropNone = -1;
  /// `drop`: the number, from 0 on, of the wait that is not made.
  explicit WaitCounter(std::int64_t drop = kDropNone) : drop_(drop) {}

  [[nodiscard]] bool waits(const Stream& stream, const Event& event) override {
    const std::scoped_lock lock(mutex_);
    const std::int64_t place = waits_of_[&stream]++;
    if (count_++ != drop_) return true;
    dropped_ = concat("wait ", drop_, " (wait ", place, " of stream '", stream.name(), "') for ",
                      name_of_point(event));
    return false;
  }

  /// Waits so far.
  [[nodiscard]] std::int64_t count() const {
    const std::scoped_lock lock(mutex_);
    return count_;
  }
  /// "wait 7 (wait 2 of stream 'gather') for a point of stream 'compute'"; empty while nothing was
  /// dropped.
  [[nodiscard]] std::string dropped() const {
    const std::scoped_lock lock(mutex_);
    return dropped_;
  }

 private:
  static std::string name_of_point(const Event& event) {
    const auto* gate = dynamic_cast<const internal::Gate*>(event.state().get());
    return gate != nullptr ? gate->describe() : "nothing";
  }

  mutable std::mutex mutex_;
  std::int64_t drop_;
  std::int64_t count_ = 0;
  std::map<const Stream*, std::int64_t> waits_of_;
  std::string dropped_;
};

/// A device whose streams drop the wait that the counter chooses.
class DroppingDevice final : public ObservedDevice {
 public:
  DroppingDevice(std::unique_ptr<Device> inner, WaitCounter& counter)
      : ObservedDevice(std::move(inner), counter) {}
};

}  // namespace zero3::test
