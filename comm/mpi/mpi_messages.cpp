#include "mpi/mpi_messages.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include <zero3/error.h>

namespace zero3::mpi {
namespace {

using process::Letter;
using process::Transfer;

constexpr int kLetterTag = 1;
constexpr int kFirstTransferTag = 2;
/// Of one message: a count of MPI is an int, and what ends now and then shows that bytes move.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 26;
/// Without an end of a message for so long, the thread sleeps as if it waited for a letter.
constexpr std::chrono::seconds kLongestSpin{1};

// How long the thread sleeps between two looks for an expected letter: an eighth of the time since
// the last news, so that what comes soon is found soon, and a long wait costs nothing.
constexpr std::chrono::microseconds kShortestSleep{20};
constexpr std::chrono::microseconds kLongestSleep{1000};

}  // namespace

void MpiMessages::check(int result, const char* what) {
  if (result == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  throw CommError(concat(what, " failed: ", text.data()));
}

MpiMessages::MpiMessages() {
  MPI_Comm_dup(MPI_COMM_WORLD, &world_);
  MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
  post_receive();
}

MpiMessages::~MpiMessages() {
  MPI_Cancel(&receiving_);
  MPI_Wait(&receiving_, MPI_STATUS_IGNORE);
  MPI_Comm_free(&world_);
}

void MpiMessages::tell(int rank, const Letter& letter) {
  const auto* data = reinterpret_cast<const std::byte*>(&letter);
  std::vector<std::byte> bytes(data, data + letter.bytes());
  const std::scoped_lock lock(mutex_);
  if (stopped_) return;
  letters_.emplace_back(rank, std::move(bytes));
  news_ = news_ || letter.kind != Letter::Kind::kAlive;
  changed_.notify_one();
}

void MpiMessages::begin(std::shared_ptr<Transfer> transfer) {
  const std::scoped_lock lock(mutex_);
  if (stopped_) {
    transfer->close();
    return;
  }
  begun_.push_back(std::move(transfer));
  news_ = true;
  changed_.notify_one();
}

void MpiMessages::give_up(Transfer& transfer) noexcept {
  // MPI may touch the memory until its thread has seen the failure and stopped.
  constexpr std::chrono::milliseconds kSlice{50};
  while (transfer.open()) transfer.sleep(kSlice);
}

void MpiMessages::expect(int change) {
  const std::scoped_lock lock(mutex_);
  expecting_ += change;
  if (change > 0) changed_.notify_one();
}

void MpiMessages::carry(const std::function<void(const Letter&)>& deliver) {
  std::deque<std::pair<int, std::vector<std::byte>>> letters;
  {
    const std::scoped_lock lock(mutex_);
    letters.swap(letters_);
    waiting_.insert(waiting_.end(), begun_.begin(), begun_.end());
    begun_.clear();
    if (std::exchange(news_, false)) last_news_ = Clock::now();
  }
  send_letters(letters);
  receive_letters(deliver);
  std::erase_if(waiting_, [this](const std::shared_ptr<Transfer>& transfer) {
    const bool may = transfer->may_start();
    if (may) start(transfer);
    return may;
  });
  std::erase_if(moving_, [this](Moving& moving) { return advance(moving); });
  std::erase_if(sent_, [](Sent& sent) {
    int done = 0;
    check(MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE), "sending a letter");
    return done != 0;
  });
}

void MpiMessages::send_letters(std::deque<std::pair<int, std::vector<std::byte>>>& letters) {
  for (auto& [rank, bytes] : letters) {
    Sent& sent = sent_.emplace_back();
    sent.bytes = std::move(bytes);
    check(MPI_Isend(sent.bytes.data(), static_cast<int>(sent.bytes.size()), MPI_BYTE, rank,
                    kLetterTag, world_, &sent.request),
          "sending a letter");
  }
}

void MpiMessages::post_receive() {
  check(MPI_Irecv(&incoming_, sizeof(Letter), MPI_BYTE, MPI_ANY_SOURCE, kLetterTag, world_,
                  &receiving_),
        "receiving a letter");
}

void MpiMessages::receive_letters(const std::function<void(const Letter&)>& deliver) {
  while (true) {
    int done = 0;
    check(MPI_Test(&receiving_, &done, MPI_STATUS_IGNORE), "receiving a letter");
    if (done == 0) return;
    deliver(incoming_);
    if (incoming_.kind != Letter::Kind::kAlive) last_news_ = Clock::now();
    post_receive();
  }
}

void MpiMessages::start(std::shared_ptr<Transfer> transfer) {
  Moving moving;
  const int tag = kFirstTransferTag + transfer->channel;
  std::size_t part = 0;
  const auto post = [&](std::int64_t bytes, const auto& call) {
    int requests = 0;
    for (std::int64_t at = 0; at < bytes; at += kMostBytes) {
      MPI_Request& request = moving.requests.emplace_back(MPI_REQUEST_NULL);
      check(call(at, static_cast<int>(std::min(kMostBytes, bytes - at)), &request), "a transfer");
      moving.part_of_request.push_back(part);
      ++requests;
    }
    moving.requests_of_part.push_back(requests);
    ++part;
  };
  for (const Transfer::Send& send : transfer->sends) {
    post(send.bytes, [&](std::int64_t at, int count, MPI_Request* request) {
      return MPI_Isend(send.data + at, count, MPI_BYTE, send.rank, tag, world_, request);
    });
  }
  for (const Transfer::Receive& receive : transfer->receives) {
    post(receive.bytes, [&](std::int64_t at, int count, MPI_Request* request) {
      return MPI_Irecv(receive.data + at, count, MPI_BYTE, receive.rank, tag, world_, request);
    });
  }
  moving.transfer = std::move(transfer);
  moving_.push_back(std::move(moving));
  last_moved_ = Clock::now();
}

bool MpiMessages::advance(Moving& moving) {
  const int requests = static_cast<int>(moving.requests.size());
  ended_.resize(moving.requests.size());
  int count = 0;
  check(MPI_Testsome(requests, moving.requests.data(), &count, ended_.data(), MPI_STATUSES_IGNORE),
        "a transfer");
  if (count > 0) last_news_ = last_moved_ = Clock::now();
  for (int i = 0; i < count; ++i) {
    const auto request = static_cast<std::size_t>(ended_[static_cast<std::size_t>(i)]);
    const std::size_t part = moving.part_of_request[request];
    if (--moving.requests_of_part[part] == 0) moving.transfer->moved(part);
  }
  if (!moving.transfer->complete()) return false;
  moving.transfer->close();
  return true;
}

void MpiMessages::pause(std::chrono::milliseconds longest) {
  const bool moves = !moving_.empty();
  if (moves && Clock::now() - last_moved_ < kLongestSpin) {
    // A thread that sleeps here moves a tenth of what MPI can.
    sched_yield();
    return;
  }
  std::unique_lock lock(mutex_);
  std::chrono::microseconds time = longest;
  if (moves || !waiting_.empty() || expecting_ > 0 || !sent_.empty()) {
    const auto since =
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - last_news_);
    time = std::min(time, std::clamp(since / 8, kShortestSleep, kLongestSleep));
  }
  const int expecting = expecting_;
  changed_.wait_for(lock, time,
                    [&] { return !letters_.empty() || !begun_.empty() || expecting_ > expecting; });
}

bool MpiMessages::sent_all() {
  const std::scoped_lock lock(mutex_);
  return letters_.empty() && sent_.empty();
}

void MpiMessages::stop() {
  const std::scoped_lock lock(mutex_);
  stopped_ = true;
  for (auto& transfer : begun_) transfer->close();
  for (auto& transfer : waiting_) transfer->close();
  begun_.clear();
  waiting_.clear();
  for (Moving& moving : moving_) moving.transfer->close();
  moving_.clear();
}

}  // namespace zero3::mpi
