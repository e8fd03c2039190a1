#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include <zero3/error.h>
#include <zero3/trace.h>

#include "support/contains.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

struct Alone {
  Alone() : device(make_device({.trace = &trace})), stream(device->make_stream({})) {}

  Buffer upload(const std::vector<float>& values) const {
    Buffer buffer(Elements(static_cast<std::int64_t>(values.size())), DType::kF32,
                  MemoryTag::kWorkspace, *stream);
    copy_from_host(buffer.view(), values.data(), *stream);
    stream->synchronize();
    return buffer;
  }
  /// Operations that ran since the last call.
  std::size_t operations() {
    stream->synchronize();
    const std::size_t all = trace.spans().size();
    return all - std::exchange(seen, all);
  }

  Trace trace;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Communicator> self = make_self_communicator();
  std::size_t seen = 0;
};

TEST(SelfCommunicator, IsRankZeroOfOne) {
  const auto self = make_self_communicator();
  EXPECT_EQ(self->rank(), 0);
  EXPECT_EQ(self->world_size(), 1);
}

TEST(SelfCommunicator, EnqueuesNothingWhereAViewWillDo) {
  Alone a;
  const Buffer values = a.upload({1.0F, 2.0F});
  static_cast<void>(a.operations());
  a.self->all_gather(values.view(), values.view(), "w", *a.stream);
  a.self->reduce_scatter(values.view(), values.view(), {}, "g", *a.stream);
  a.self->all_reduce(values.view(), "n", *a.stream);
  a.self->broadcast(values.view(), 0, "b", *a.stream);
  a.self->barrier("e", *a.stream);
  EXPECT_EQ(a.operations(), 0U);
  EXPECT_EQ(values.view().host_span<float>()[1], 2.0F);
}

TEST(SelfCommunicator, ReduceScatterInPlaceOnlyRounds) {
  Alone a;
  const float fine = 1.0F + 0x1p-20F;
  const Buffer values = a.upload({fine});
  a.self->reduce_scatter(values.view(), values.view(), {.wire = DType::kBF16}, "g", *a.stream);
  a.stream->synchronize();
  EXPECT_EQ(values.view().host_span<float>()[0], 1.0F);
}

TEST(SelfCommunicator, CountsOperationsAndNoBytes) {
  Alone a;
  const Buffer values = a.upload({1.0F, 2.0F});
  for (int i = 0; i < 3; ++i) a.self->all_reduce(values.view(), "n", *a.stream);
  EXPECT_EQ(a.self->counters()[CollectiveOp::kAllReduce].count, 3);
  EXPECT_EQ(a.self->counters()[CollectiveOp::kAllReduce].bytes, Bytes(0));
}

TEST(SelfCommunicator, FailsAfterAnAbortAndSoDoWhatWasSplitFromIt) {
  Alone a;
  const auto other = a.self->duplicate(*a.stream);
  a.self->abort("had enough");
  for (Communicator* c : {a.self.get(), other.get()}) {
    c->barrier("after", *a.stream);
    EXPECT_TRUE(contains(message_of<CommError>([&] { a.stream->synchronize(); }),
                         {"barrier", "'after'", "rank 0", "had enough"}));
  }
}

TEST(SelfCommunicator, ASplitGroupOfOneFailsWithItsWorld) {
  std::latch both_have_split(2);
  run_ranks(2, [&](Rank& r) {
    const auto alone = r.communicator->split(r.rank, 0, *r.stream);
    EXPECT_EQ(alone->world_size(), 1);
    both_have_split.arrive_and_wait();
    if (r.rank == 0) r.communicator->abort("had enough");
    EXPECT_THROW(
        {
          r.communicator->barrier("wait for the abort", *r.stream);
          r.stream->synchronize();
        },
        CommError);
    alone->barrier("alone", *r.stream);
    EXPECT_TRUE(contains(message_of<CommError>([&] { r.stream->synchronize(); }),
                         {"'alone'", "rank 0", "had enough"}));
  });
}

}  // namespace
}  // namespace zero3::test
