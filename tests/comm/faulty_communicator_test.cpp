#include <gtest/gtest.h>

#include <future>
#include <thread>

#include <zero3/error.h>
#include <zero3/faulty_communicator.h>

#include "support/contains.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

using Kind = Fault::Kind;

/// Rank 1 of two gets the faults.
void run_with(std::vector<Fault> faults, const std::function<void(Rank&)>& rank_main,
              std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  run_ranks(2,
            [&](Rank& r) {
              if (r.rank == 1) {
                r.communicator =
                    std::make_unique<FaultyCommunicator>(std::move(r.communicator), faults);
              }
              rank_main(r);
            },
            {.timeout = timeout});
}

/// One all_gather, and what it throws as `Error`.
template <class Error = CommError>
std::string gather(Rank& r, std::string_view label, bool in_place = false) {
  const Buffer shard = r.upload(std::vector<float>(4, static_cast<float>(r.rank)));
  const Buffer full = r.upload(std::vector<float>(8, static_cast<float>(r.rank)));
  return message_of<Error>([&] {
    r.communicator->all_gather(
        full.view(), in_place ? full.view().slice(4 * r.rank, 4) : shard.view(), label, *r.stream);
    r.stream->synchronize();
    EXPECT_EQ(r.download<float>(full.view()), (std::vector<float>{0, 0, 0, 0, 1, 1, 1, 1}));
  });
}

TEST(FaultyCommunicator, PassesOnWhatNoFaultStrikes) {
  run_with({{.kind = Kind::kThrow, .at = 5}}, [](Rank& r) {
    EXPECT_EQ(r.communicator->rank(), r.rank);
    EXPECT_EQ(r.communicator->world_size(), 2);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(gather(r, "w"), "nothing was thrown");
    EXPECT_EQ(r.communicator->counters()[CollectiveOp::kAllGather].count, 5);
  });
}

TEST(FaultyCommunicator, DelaysTheStreamAndNotTheHost) {
  using Clock = std::chrono::steady_clock;
  run_with({{.kind = Kind::kDelay, .at = Fault::kEvery, .delay = std::chrono::milliseconds(10)}},
           [](Rank& r) {
             std::promise<void> host_is_through;
             Clock::time_point begin, end;
             r.stream->call("hold", [&] { host_is_through.get_future().wait(); });
             r.stream->call("begin", [&] { begin = Clock::now(); });
             for (int i = 0; i < 3; ++i) r.communicator->barrier("e", *r.stream);
             r.stream->call("end", [&] { end = Clock::now(); });
             host_is_through.set_value();
             r.stream->synchronize();
             if (r.rank == 1) {
               EXPECT_GE(end - begin, std::chrono::milliseconds(30));
             }
           });
}

TEST(FaultyCommunicator, ThrowsAtTheGivenOperation) {
  EXPECT_TRUE(contains(message_of<FaultError>([] {
                         run_with({{.kind = Kind::kThrow, .at = 2}}, [](Rank& r) {
                           for (int i = 0; i < 2; ++i)
                             EXPECT_EQ(gather(r, "w"), "nothing was thrown");
                           const std::string error = gather(r, "third");
                           EXPECT_TRUE(contains(error, {"rank 1: injected fault", "'third'"}));
                         });
                       }),
                       {"injected fault in all_gather of 'third' on rank 1"}));
}

TEST(FaultyCommunicator, FailsTheStreamInPlaceOfTheOperation) {
  run_with({{.kind = Kind::kFail}}, [](Rank& r) {
    if (r.rank == 1) {
      EXPECT_TRUE(contains(gather<FaultError>(r, "w"), {"injected fault in all_gather of 'w'"}));
    } else {
      EXPECT_TRUE(contains(gather(r, "w"), {"rank 1", "injected fault"}));
    }
  });
}

TEST(FaultyCommunicator, DropsAnOperationSoThatTheRankNeverArrives) {
  run_with(
      {{.kind = Kind::kDrop}},
      [](Rank& r) {
        if (r.rank == 1) {
          r.communicator->barrier("e", *r.stream);
          EXPECT_NO_THROW(r.stream->synchronize());
          std::this_thread::sleep_for(std::chrono::milliseconds(150));
        } else {
          r.communicator->barrier("e", *r.stream);
          EXPECT_TRUE(contains(message_of<CommError>([&] { r.stream->synchronize(); }),
                               {"barrier of 'e'", "rank 1 absent after 50 ms"}));
        }
      },
      std::chrono::milliseconds(50));
}

TEST(FaultyCommunicator, IssuesAnotherOperation) {
  run_with({{.kind = Kind::kOtherOp}}, [](Rank& r) {
    EXPECT_TRUE(
        contains(gather(r, "w"), {"rank 0", "all_gather of 'w'", "rank 1", "barrier of 'w'"}));
  });
}

TEST(FaultyCommunicator, IssuesAnotherOperationInPlaceOfABarrier) {
  run_with({{.kind = Kind::kOtherOp}}, [](Rank& r) {
    r.communicator->barrier("e", *r.stream);
    EXPECT_TRUE(contains(message_of<CommError>([&] { r.stream->synchronize(); }),
                         {"all_reduce of 'e'", "barrier of 'e'"}));
  });
}

TEST(FaultyCommunicator, IssuesAnotherLabel) {
  run_with({{.kind = Kind::kOtherLabel}}, [](Rank& r) {
    EXPECT_TRUE(contains(gather(r, "w"), {"'w'", "'w (another)'"}));
  });
}

TEST(FaultyCommunicator, IssuesASmallerOperation) {
  for (const bool in_place : {false, true}) {
    run_with({{.kind = Kind::kSmaller}}, [=](Rank& r) {
      EXPECT_TRUE(contains(gather(r, "w", in_place), {"(32 bytes)", "(24 bytes)"}));
    });
  }
}

TEST(FaultyCommunicator, MakesEveryOperationThatMovesSomethingSmaller) {
  using Issue =
      std::function<void(Rank&, const Buffer& part, const Buffer& whole, const Buffer& out)>;
  const std::vector<Issue> operations = {
      [](Rank& r, const Buffer& part, const Buffer& whole, const Buffer&) {
        r.communicator->reduce_scatter(part.view(), whole.view(), {}, "x", *r.stream);
      },
      [](Rank& r, const Buffer&, const Buffer& whole, const Buffer&) {
        r.communicator->all_reduce(whole.view(), "x", *r.stream);
      },
      [](Rank& r, const Buffer&, const Buffer& whole, const Buffer& out) {
        r.communicator->all_to_all(out.view(), whole.view(), "x", *r.stream);
      },
      [](Rank& r, const Buffer&, const Buffer& whole, const Buffer&) {
        r.communicator->broadcast(whole.view(), 0, "x", *r.stream);
      }};
  for (const Issue& issue : operations) {
    run_with({{.kind = Kind::kSmaller}}, [&](Rank& r) {
      const Buffer part = r.allocate(4), whole = r.allocate(8), out = r.allocate(8);
      issue(r, part, whole, out);
      EXPECT_TRUE(
          contains(message_of<CommError>([&] { r.stream->synchronize(); }), {"(32 bytes)"}));
    });
  }
}

TEST(FaultyCommunicator, CannotMakeNothingSmaller) {
  const auto self = [] {
    return FaultyCommunicator(make_self_communicator(),
                              {{.kind = Kind::kSmaller, .at = Fault::kEvery}});
  };
  const auto device = make_device({});
  const auto stream = device->make_stream({});
  EXPECT_THROW(self().all_reduce({}, "none", *stream), UsageError);
  EXPECT_THROW(self().barrier("none", *stream), UsageError);
}

TEST(FaultyCommunicator, CountsOnlyTheOperationsThatMatch) {
  run_with({{.kind = Kind::kThrow, .at = 1, .op = CollectiveOp::kBarrier, .label = "here"}},
           [](Rank& r) {
             Communicator& c = *r.communicator;
             for (int i = 0; i < 3; ++i) c.barrier("there", *r.stream);
             for (int i = 0; i < 3; ++i) c.all_reduce({}, "here", *r.stream);
             c.barrier("here", *r.stream);
             r.stream->synchronize();
             if (r.rank == 1) {
               EXPECT_THROW(c.barrier("here", *r.stream), FaultError);
             }
           });
}

TEST(FaultyCommunicator, CommunicatorsSplitFromItShareItsFaults) {
  run_with({{.kind = Kind::kThrow, .at = 2}}, [](Rank& r) {
    const auto twin = r.communicator->duplicate(*r.stream);
    r.communicator->barrier("first", *r.stream);
    twin->barrier("second", *r.stream);
    r.stream->synchronize();
    if (r.rank == 1) {
      EXPECT_THROW(twin->barrier("third", *r.stream), FaultError);
    }
  });
}

TEST(FaultyCommunicator, PassesOnAnAbort) {
  run_with({}, [](Rank& r) {
    if (r.rank == 1) r.communicator->abort("from inside");
    EXPECT_TRUE(contains(gather(r, "w"), {"rank 1: from inside"}));
  });
}

}  // namespace
}  // namespace zero3::test
