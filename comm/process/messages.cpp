#include "process/messages.h"

#include <set>
#include <utility>

namespace zero3::process {

std::size_t Letter::bytes() const {
  return offsetof(Letter, text) + text_bytes;
}

Transfer::Transfer(int channel_number, std::vector<Send> to_send, std::vector<Receive> to_receive,
                   MayStart may_start_if)
    : channel(channel_number),
      sends(std::move(to_send)),
      receives(std::move(to_receive)),
      may_start_(std::move(may_start_if)),
      moved_(sends.size() + receives.size()),
      left_(moved_.size()) {}

void Transfer::moved(std::size_t i) {
  moved_[i].store(true, std::memory_order_relaxed);
  left_.fetch_sub(1, std::memory_order_acq_rel);
}

void Transfer::close() {
  open_.store(0, std::memory_order_release);
  wake(open_);
}

std::vector<int> Transfer::missing() const {
  std::set<int> ranks;
  for (std::size_t i = 0; i < moved_.size(); ++i) {
    if (moved_[i].load(std::memory_order_relaxed)) continue;
    ranks.insert(i < sends.size() ? sends[i].rank : receives[i - sends.size()].rank);
  }
  return {ranks.begin(), ranks.end()};
}

void Transfer::sleep(std::chrono::milliseconds longest) {
  sleep_on(open_, 1, longest);
}

}  // namespace zero3::process
