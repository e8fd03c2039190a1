#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <zero3/communicator.h>

namespace zero3 {

/// Something that goes wrong on one rank, for tests of what the other ranks, and the program, make
/// of it.
struct Fault {
  enum class Kind : std::uint8_t {
    kDelay,       ///< the stream sleeps for `delay` before the operation; the host does not wait
    kThrow,       ///< the call throws FaultError, nothing is enqueued
    kFail,        ///< the stream fails with FaultError in place of the operation
    kExit,        ///< the process ends at once, with status 0, as if its work were done
    kDrop,        ///< nothing is enqueued: the rank never arrives, and goes on
    kOtherOp,     ///< a barrier is issued (an all_reduce of nothing in place of a barrier)
    kOtherLabel,  ///< the label gets the suffix " (another)"
    kSmaller,     ///< every part is one element smaller; UsageError where parts are empty
  };
  static constexpr std::int64_t kEvery = -1;

  Kind kind = Kind::kThrow;
  /// Strikes the `at`-th operation, from 0, of those that match `op` and `label`; kEvery: each of
  /// them.
  std::int64_t at = 0;
  /// Not set: any.
  std::optional<CollectiveOp> op = std::nullopt;
  /// Empty: any.
  std::string label = {};
  std::chrono::milliseconds delay{0};
};

/// Thrown by kThrow and kFail; names the operation.
class FaultError : public Error {
 public:
  using Error::Error;
};

/// Any communicator, with faults of one rank. Communicators split from it share its faults and
/// their counts. Operations that no fault strikes, and splits, go to `inner` as they are; so do
/// abort() and counters(), which count what was really issued.
class FaultyCommunicator final : public Communicator {
 public:
  FaultyCommunicator(std::unique_ptr<Communicator> inner, std::vector<Fault> faults);
  FaultyCommunicator(const FaultyCommunicator&) = delete;
  FaultyCommunicator& operator=(const FaultyCommunicator&) = delete;
  ~FaultyCommunicator() override;

  [[nodiscard]] int rank() const override;
  [[nodiscard]] int world_size() const override;
  void all_gather(TensorView full, TensorView shard, std::string_view label,
                  Stream& stream) override;
  void reduce_scatter(TensorView accumulator, TensorView full, Reduction reduction,
                      std::string_view label, Stream& stream) override;
  void all_reduce(TensorView values, std::string_view label, Stream& stream) override;
  void all_to_all(TensorView out, TensorView in, std::string_view label, Stream& stream) override;
  void broadcast(TensorView values, int root, std::string_view label, Stream& stream) override;
  void barrier(std::string_view label, Stream& stream) override;
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key, Stream& stream) override;
  void abort(std::string_view reason) noexcept override;
  [[nodiscard]] CommCounters counters() const override;

 private:
  struct Plan;
  struct Changed;
  std::optional<Changed> strike(CollectiveOp op, std::string_view label, Stream& stream);

  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<Plan> plan_;
};

}  // namespace zero3
