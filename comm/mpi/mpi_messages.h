#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "process/messages.h"

namespace zero3::mpi {

/// Letters and transfers as messages of MPI. Other threads leave them here; one thread, which is
/// the only one that calls MPI, carries them.
class MpiMessages final : public process::Messages {
 public:
  using Clock = std::chrono::steady_clock;

  /// Collective.
  MpiMessages();
  ~MpiMessages() override;
  MpiMessages(const MpiMessages&) = delete;
  MpiMessages& operator=(const MpiMessages&) = delete;

  void tell(int rank, const process::Letter& letter) override;
  void begin(std::shared_ptr<process::Transfer> transfer) override;
  void give_up(process::Transfer& transfer) noexcept override;
  void expect(int change) override;

  // For the thread of MPI.

  /// Starts what was left here, finishes what has moved, delivers letters. Throws CommError.
  void carry(const std::function<void(const process::Letter&)>& deliver);
  /// Until there may be something to carry, or the time has passed: yields while bytes move, sleeps
  /// briefly while letters are expected.
  void pause(std::chrono::milliseconds longest);
  /// Whether all letters have been sent.
  [[nodiscard]] bool sent_all();
  /// Closes all transfers as they are; nothing is carried any more.
  void stop();

 private:
  struct Sent {
    std::vector<std::byte> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Moving {
    std::shared_ptr<process::Transfer> transfer;
    std::vector<MPI_Request> requests;
    std::vector<std::size_t> part_of_request;
    std::vector<int> requests_of_part;  ///< that have not ended
  };

  void send_letters(std::deque<std::pair<int, std::vector<std::byte>>>& letters);
  void receive_letters(const std::function<void(const process::Letter&)>& deliver);
  void post_receive();
  void start(std::shared_ptr<process::Transfer> transfer);
  [[nodiscard]] bool advance(Moving& moving);
  static void check(int result, const char* what);

  MPI_Comm world_ = MPI_COMM_NULL;
  process::Letter incoming_;
  MPI_Request receiving_ = MPI_REQUEST_NULL;
  std::list<Sent> sent_;
  std::deque<std::shared_ptr<process::Transfer>> waiting_;  ///< until they may start
  std::list<Moving> moving_;
  // Signs of life are no news: they come whatever happens.
  Clock::time_point last_news_ = Clock::now(), last_moved_ = last_news_;
  std::vector<int> ended_;  ///< of MPI_Testsome

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by the mutex.
  std::deque<std::pair<int, std::vector<std::byte>>> letters_;
  std::vector<std::shared_ptr<process::Transfer>> begun_;
  bool news_ = false;
  int expecting_ = 0;
  bool stopped_ = false;
};

}  // namespace zero3::mpi
