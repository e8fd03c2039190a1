#include <gtest/gtest.h>

#include <zero3/error.h>

#include "support/contains.h"
#include "support/run_ranks.h"

namespace zero3::test {
namespace {

constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kU8,
                          DType::kU16, DType::kU32,  DType::kU64, DType::kI32, DType::kI64};

/// Every combination is either the operation or a UsageError, for every world size alike.
void for_world_sizes(const std::function<void(Rank&)>& body) {
  for (int world_size = 1; world_size <= 5; ++world_size) run_ranks(world_size, body);
}

/// Whether `call` is accepted. What was accepted is run, so that a wrong one would show.
template <class Call>
bool accepted(Rank& r, Call&& call) {
  try {
    call();
  } catch (const UsageError&) {
    return false;
  }
  r.stream->synchronize();
  return true;
}

/// Bytes 0, 1, 2, …, other for every rank.
std::vector<std::uint8_t> pattern(int rank, std::int64_t bytes) {
  std::vector<std::uint8_t> result;
  for (std::int64_t i = 0; i < bytes; ++i)
    result.push_back(static_cast<std::uint8_t>(i + 37 * rank));
  return result;
}

TEST(Collective, AllGatherMovesEveryDTypeAndNarrowsFp32Alone) {
  for_world_sizes([](Rank& r) {
    for (const DType full_dtype : kAll) {
      for (const DType shard_dtype : kAll) {
        const Buffer shard = r.allocate(5, shard_dtype);
        const Buffer full = r.allocate(5 * r.world_size, full_dtype);
        fill_zero(shard.view(), *r.stream);
        const bool narrows =
            shard_dtype == DType::kF32 && (full_dtype == DType::kBF16 || full_dtype == DType::kF16);
        EXPECT_EQ(
            accepted(
                r, [&] { r.communicator->all_gather(full.view(), shard.view(), "w", *r.stream); }),
            narrows || shard_dtype == full_dtype)
            << shard_dtype << " to " << full_dtype;
      }
    }
  });
}

TEST(Collective, AllGatherKeepsTheBytesOfEveryDType) {
  for_world_sizes([](Rank& r) {
    for (const DType dtype : kAll) {
      const Buffer shard = r.allocate(5, dtype), full = r.allocate(5 * r.world_size, dtype);
      const std::vector<std::uint8_t> own = pattern(r.rank, shard.view().bytes().count());
      copy_from_host(shard.view(), own.data(), *r.stream);
      r.communicator->all_gather(full.view(), shard.view(), "w", *r.stream);
      const auto got = r.download<std::uint8_t>(full.view().as(DType::kU8));
      std::vector<std::uint8_t> want;
      for (int rank = 0; rank < r.world_size; ++rank) {
        const auto part = pattern(rank, shard.view().bytes().count());
        want.insert(want.end(), part.begin(), part.end());
      }
      EXPECT_EQ(got, want) << dtype;
    }
  });
}

TEST(Collective, ReduceScatterTakesFp32Alone) {
  for_world_sizes([](Rank& r) {
    for (const DType dtype : kAll) {
      const Buffer odd = r.allocate(3, dtype), odd_full = r.allocate(3 * r.world_size, dtype);
      const Buffer good = r.allocate(3), good_full = r.allocate(3 * r.world_size);
      for (const Buffer* full : {&odd_full, &good_full}) fill_zero(full->view(), *r.stream);
      const auto reduces = [&](const Buffer& accumulator, const Buffer& full) {
        return accepted(r, [&] {
          r.communicator->reduce_scatter(accumulator.view(), full.view(), {}, "g", *r.stream);
        });
      };
      EXPECT_EQ(reduces(odd, odd_full), dtype == DType::kF32) << dtype;
      EXPECT_EQ(reduces(good, odd_full), dtype == DType::kF32) << dtype;
      EXPECT_EQ(reduces(odd, good_full), dtype == DType::kF32) << dtype;
    }
  });
}

TEST(Collective, ReduceScatterTravelsInThreeDTypes) {
  for_world_sizes([](Rank& r) {
    const Buffer shard = r.allocate(3), full = r.allocate(3 * r.world_size);
    fill_zero(full.view(), *r.stream);
    for (const DType wire : kAll) {
      const bool good = wire == DType::kF32 || wire == DType::kBF16 || wire == DType::kF16;
      EXPECT_EQ(accepted(r,
                         [&] {
                           r.communicator->reduce_scatter(shard.view(), full.view(), {.wire = wire},
                                                          "g", *r.stream);
                         }),
                good)
          << wire;
    }
  });
}

TEST(Collective, AllReduceSumsFourDTypes) {
  for_world_sizes([](Rank& r) {
    for (const DType dtype : kAll) {
      const Buffer values = r.allocate(3, dtype);
      fill_zero(values.view(), *r.stream);
      const bool good = dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI64 ||
                        dtype == DType::kU64;
      EXPECT_EQ(accepted(r, [&] { r.communicator->all_reduce(values.view(), "n", *r.stream); }),
                good)
          << dtype;
    }
  });
}

TEST(Collective, AllToAllAndBroadcastMoveEveryDType) {
  for_world_sizes([](Rank& r) {
    for (const DType dtype : kAll) {
      const Buffer in = r.allocate(2 * r.world_size, dtype),
                   out = r.allocate(2 * r.world_size, dtype);
      const std::int64_t bytes = in.view().bytes().count();
      const std::int64_t part = bytes / r.world_size;
      const std::vector<std::uint8_t> own = pattern(r.rank, bytes);
      copy_from_host(in.view(), own.data(), *r.stream);
      r.communicator->all_to_all(out.view(), in.view(), "t", *r.stream);
      const auto got = r.download<std::uint8_t>(out.view().as(DType::kU8));
      for (int rank = 0; rank < r.world_size; ++rank) {
        for (std::int64_t i = 0; i < part; ++i) {
          EXPECT_EQ(got[static_cast<std::size_t>(part * rank + i)],
                    pattern(rank, bytes)[static_cast<std::size_t>(part * r.rank + i)]);
        }
      }
      r.communicator->broadcast(in.view(), r.world_size - 1, "b", *r.stream);
      EXPECT_EQ(r.download<std::uint8_t>(in.view().as(DType::kU8)),
                pattern(r.world_size - 1, bytes));
    }
  });
}

TEST(Collective, RefusesSizesThatDoNotFit) {
  for_world_sizes([](Rank& r) {
    Communicator& c = *r.communicator;
    const Buffer part = r.allocate(4), full = r.allocate(4 * r.world_size + 1);
    const TensorView view = full.view();
    EXPECT_TRUE(
        contains(message_of<UsageError>([&] { c.all_gather(view, part.view(), "w", *r.stream); }),
                 {"all_gather", "'w'", concat(4 * r.world_size + 1), concat(4 * r.world_size)}));
    EXPECT_THROW(c.reduce_scatter(part.view(), view, {}, "g", *r.stream), UsageError);
    EXPECT_THROW(c.all_to_all(part.view(), view, "t", *r.stream), UsageError);
    EXPECT_THROW(c.broadcast(view, r.world_size, "b", *r.stream), UsageError);
    EXPECT_THROW(c.broadcast(view, -1, "b", *r.stream), UsageError);
  });
}

TEST(Collective, AllToAllRefusesUnequalParts) {
  run_ranks(2, [](Rank& r) {
    const Buffer in = r.allocate(5), out = r.allocate(5);
    EXPECT_TRUE(contains(message_of<UsageError>([&] {
                           r.communicator->all_to_all(out.view(), in.view(), "t", *r.stream);
                         }),
                         {"all_to_all", "'t'", "5", "2"}));
  });
}

TEST(Collective, AllGatherRefusesAShardThatIsAnotherRanksPart) {
  run_ranks(3, [](Rank& r) {
    const Buffer full = r.allocate(12);
    for (const int other : {0, 1, 2}) {
      if (other == r.rank) continue;
      EXPECT_THROW(
          r.communicator->all_gather(full.view(), full.view().slice(4 * other, 4), "w", *r.stream),
          UsageError);
    }
    EXPECT_THROW(r.communicator->all_gather(full.view(), full.view().slice(4 * r.rank / 2 + 1, 4),
                                            "w", *r.stream),
                 UsageError);
  });
}

TEST(Collective, ReduceScatterInPlaceIsForAGroupOfOneThatReplaces) {
  for_world_sizes([](Rank& r) {
    const Buffer full =
        r.upload(std::vector<float>(static_cast<std::size_t>(4 * r.world_size), 1.0F));
    const TensorView own = full.view().slice(4 * r.rank, 4);
    const auto reduces = [&](Into into) {
      return accepted(r, [&] {
        r.communicator->reduce_scatter(own, full.view(), {.into = into}, "g", *r.stream);
      });
    };
    EXPECT_EQ(reduces(Into::kReplace), r.world_size == 1);
    EXPECT_FALSE(reduces(Into::kAccumulate));
  });
}

TEST(Collective, AllToAllRefusesOverlap) {
  for_world_sizes([](Rank& r) {
    const Buffer both = r.allocate(2 * r.world_size);
    EXPECT_THROW(r.communicator->all_to_all(both.view(), both.view(), "t", *r.stream), UsageError);
  });
}

TEST(Collective, RefusesAViewOfAReleasedBuffer) {
  for_world_sizes([](Rank& r) {
    Buffer values = r.allocate(8);
    const TensorView view = values.view();
    values.reset();
    if (r.world_size > 1) {
      EXPECT_THROW(r.communicator->all_reduce(view, "n", *r.stream), UsageError);
    }
    EXPECT_THROW(r.communicator->all_to_all(view, view, "t", *r.stream), UsageError);
  });
}

TEST(Collective, ARefusedCallTakesNoPlaceInTheOrder) {
  run_ranks(2, [](Rank& r) {
    const Buffer wrong = r.allocate(3, DType::kI32), right = r.upload(std::vector<float>(3, 1.0F));
    if (r.rank == 0) {
      EXPECT_THROW(r.communicator->all_reduce(wrong.view(), "n", *r.stream), UsageError);
    }
    r.communicator->all_reduce(right.view(), "n", *r.stream);
    EXPECT_EQ(r.download<float>(right.view()), std::vector<float>(3, 2.0F));
    EXPECT_EQ(r.communicator->counters()[CollectiveOp::kAllReduce].count, 1);
  });
}

}  // namespace
}  // namespace zero3::test
