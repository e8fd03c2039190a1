#include <gtest/gtest.h>

#include <malloc.h>

#include <cstdlib>
#include <string>

#include "comm/worlds.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ZERO3_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ZERO3_SANITIZED
#endif
#endif
#ifdef ZERO3_SANITIZED
#include <sanitizer/allocator_interface.h>
#endif

namespace zero3::test {
namespace {

/// ZERO3_COLLECTIVES=1000000 for a thorough look.
int collectives() {
  const char* given = std::getenv("ZERO3_COLLECTIVES");
  return given == nullptr ? 20000 : std::atoi(given);
}

/// Of this process's heap; a sanitizer has one of its own.
std::int64_t allocated_bytes() {
#ifdef ZERO3_SANITIZED
  return static_cast<std::int64_t>(__sanitizer_get_current_allocated_bytes());
#else
  return static_cast<std::int64_t>(mallinfo2().uordblks);
#endif
}

class ManyCollectives : public testing::TestWithParam<TestWorld> {};

TEST_P(ManyCollectives, LeaveMemoryFlat) {
  run_ranks(
      2,
      [](Rank& r) {
        const Buffer shard = r.upload(std::vector<float>(16, 1.0F)), full = r.allocate(32);
        const Buffer sum = r.allocate(16);
        const auto run = [&](int count) {
          for (int i = 0; i < count; ++i) {
            if (i % 2 == 0) {
              r.communicator->all_gather(full.view(), shard.view(),
                                         "a label longer than a short string", *r.stream);
            } else {
              r.communicator->reduce_scatter(sum.view(), full.view(), {}, "g", *r.stream);
            }
            if (i % 100 == 0) r.stream->synchronize();
          }
          r.stream->synchronize();
        };
        run(2000);
        const std::int64_t before = allocated_bytes();
        run(collectives());
        EXPECT_LT(allocated_bytes() - before, 64 * 1024);
      },
      options_of(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(, ManyCollectives, testing::Values(kThreads, kProcesses, kMessages),
                         world_name);

}  // namespace
}  // namespace zero3::test
