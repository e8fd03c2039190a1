#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <zero3/communicator.h>
#include "collective.h"
#include "group.h"

namespace zero3::collective {

/// One rank's end of a group: what collectives are, whatever lies between the ranks.
///
/// An operation is a row of tasks on the stream: arrive, one or two steps, depart
/// ([Note: levels] in group.h); the host never waits.
class GroupCommunicator final : public Communicator {
 public:
  GroupCommunicator(std::shared_ptr<Group> group, int rank);
  GroupCommunicator(const GroupCommunicator&) = delete;
  GroupCommunicator& operator=(const GroupCommunicator&) = delete;
  ~GroupCommunicator() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return group_->size(); }

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
  [[nodiscard]] CommCounters counters() const override { return counters_; }

 private:
  [[nodiscard]] Caller caller(std::string_view label) const;
  [[nodiscard]] Call new_call(Header header, const void* source = nullptr) const;
  void issue(Call call, Stream& stream);

  std::shared_ptr<Group> group_;
  int rank_;
  int exceptions_at_start_;
  std::int64_t issued_ = 0;
  const Stream* last_stream_ = nullptr;  ///< compared, never used
  CommCounters counters_;
};

}  // namespace zero3::collective
