#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "process/process_world.h"

namespace zero3::test {

/// Messages between ranks that are threads of this process: letters arrive as they are told, and
/// bytes move when both sides have begun.
class MessageDouble {
 public:
  explicit MessageDouble(int ranks) : worlds_(static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      ends_.push_back(std::make_unique<End>(*this, rank));
    }
  }

  [[nodiscard]] process::Messages& end(int rank) { return *ends_[static_cast<std::size_t>(rank)]; }
  /// From now on letters reach the rank; those told before are kept for it.
  void connect(int rank, const std::shared_ptr<process::ProcessWorld>& world) {
    const std::scoped_lock lock(mutex_);
    worlds_[static_cast<std::size_t>(rank)] = world;
    deliver(rank);
  }
  /// Nothing gets through any more.
  void cut() {
    const std::scoped_lock lock(mutex_);
    cut_ = true;
  }
  /// Letters do, bytes do not.
  void stall() {
    const std::scoped_lock lock(mutex_);
    stalled_ = true;
  }
  /// Transfers whose memory may be touched yet.
  [[nodiscard]] std::size_t under_way() {
    const std::scoped_lock lock(mutex_);
    std::size_t count = 0;
    for (const auto& [rank, waiting] : waiting_) count += waiting.size();
    for (const auto* lines : {&sends_, &receives_}) {
      for (const auto& [line, parts] : *lines) count += parts.size();
    }
    return count;
  }
  /// Bytes that have reached the rank.
  [[nodiscard]] std::int64_t received(int rank) {
    const std::scoped_lock lock(mutex_);
    return received_[rank];
  }

 private:
  struct Part {
    std::shared_ptr<process::Transfer> transfer;
    std::size_t index;
    const std::byte* from;
    std::byte* to;
    std::int64_t bytes;
  };
  using Line = std::tuple<int, int, int>;  // channel, from, to

  struct End final : process::Messages {
    End(MessageDouble& double_of, int rank_of_end) : all(double_of), rank(rank_of_end) {}
    void tell(int to, const process::Letter& letter) override { all.tell(to, letter); }
    void begin(std::shared_ptr<process::Transfer> transfer) override { all.begin(rank, transfer); }
    void give_up(process::Transfer& transfer) noexcept override { all.give_up(transfer); }
    void expect(int) override {}
    MessageDouble& all;
    int rank;
  };

  void tell(int to, const process::Letter& letter) {
    const std::scoped_lock lock(mutex_);
    if (cut_) return;
    letters_[to].push_back(letter);
    deliver(to);
  }
  void deliver(int to) {
    const auto world = worlds_[static_cast<std::size_t>(to)].lock();
    if (!world) return;
    std::deque<process::Letter>& letters = letters_[to];
    for (; !letters.empty(); letters.pop_front()) world->receive(letters.front());
    start_waiting(to);
  }
  void begin(int rank, const std::shared_ptr<process::Transfer>& transfer) {
    const std::scoped_lock lock(mutex_);
    waiting_[rank].push_back(transfer);
    start_waiting(rank);
  }
  void start_waiting(int rank) {
    if (cut_ || stalled_) return;
    std::erase_if(waiting_[rank], [&](const std::shared_ptr<process::Transfer>& transfer) {
      const bool may = transfer->may_start();
      if (may) start(rank, transfer);
      return may;
    });
  }
  void start(int rank, const std::shared_ptr<process::Transfer>& transfer) {
    std::size_t index = 0;
    for (const auto& send : transfer->sends) {
      const Line line{transfer->channel, rank, send.rank};
      sends_[line].push_back({transfer, index++, send.data, nullptr, send.bytes});
      match(line);
    }
    for (const auto& receive : transfer->receives) {
      const Line line{transfer->channel, receive.rank, rank};
      receives_[line].push_back({transfer, index++, nullptr, receive.data, receive.bytes});
      match(line);
    }
  }
  void match(const Line& line) {
    std::deque<Part>& sends = sends_[line];
    std::deque<Part>& receives = receives_[line];
    if (sends.empty() || receives.empty()) return;
    const Part from = sends.front();
    const Part to = receives.front();
    sends.pop_front();
    receives.pop_front();
    EXPECT_EQ(from.bytes, to.bytes) << "a message of another size";
    std::memcpy(to.to, from.from, static_cast<std::size_t>(std::min(from.bytes, to.bytes)));
    received_[std::get<2>(line)] += to.bytes;
    for (const Part* part : {&from, &to}) {
      part->transfer->moved(part->index);
      if (part->transfer->complete()) part->transfer->close();
    }
  }
  void give_up(process::Transfer& transfer) noexcept {
    const std::scoped_lock lock(mutex_);
    for (auto* lines : {&sends_, &receives_}) {
      for (auto& [line, parts] : *lines) {
        std::erase_if(parts, [&](const Part& part) { return part.transfer.get() == &transfer; });
      }
    }
    for (auto& [rank, waiting] : waiting_) {
      std::erase_if(waiting, [&](const auto& other) { return other.get() == &transfer; });
    }
    transfer.close();
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<End>> ends_;
  std::vector<std::weak_ptr<process::ProcessWorld>> worlds_;
  std::map<int, std::deque<process::Letter>> letters_;
  std::map<int, std::deque<std::shared_ptr<process::Transfer>>> waiting_;  ///< until they may start
  std::map<Line, std::deque<Part>> sends_, receives_;
  std::map<int, std::int64_t> received_;
  bool cut_ = false, stalled_ = false;
};

}  // namespace zero3::test
