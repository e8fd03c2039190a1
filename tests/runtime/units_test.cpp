#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero3/error.h>
#include <zero3/units.h>

namespace zero3 {
namespace {

static_assert(!std::is_convertible_v<Elements, Bytes> && !std::is_constructible_v<Bytes, Elements>,
              "a count of elements is no count of bytes");
static_assert(!std::is_convertible_v<std::int64_t, Elements>, "a bare number has no unit");
static_assert(Elements(3) + Elements(4) == Elements(7) && Elements(3) - Elements(4) < Elements(0));
static_assert(2 * Bytes(3) == Bytes(6) && Bytes(6) / 4 == Bytes(1) && Bytes(6) / Bytes(3) == 2);
static_assert(bytes_of(Elements(3), DType::kBF16) == Bytes(6));
static_assert(bytes_of(Elements(std::int64_t{1} << 40), DType::kF32) ==
              Bytes(std::int64_t{1} << 42));
static_assert(div_ceil(0, 4) == 0 && div_ceil(1, 4) == 1 && div_ceil(4, 4) == 1 &&
              div_ceil(5, 4) == 2);
static_assert(round_up(0, 64) == 0 && round_up(63, 64) == 64 && round_up(64, 64) == 64);
static_assert(aligned(Bytes(0)) == Bytes(0) && aligned(Bytes(65)) == Bytes(128));

TEST(Elements, PrintTheBareCount) {
  EXPECT_EQ(concat(Elements(1234)), "1234");
}

TEST(Bytes, PrintInTheLargestUnitThatFits) {
  const std::vector<std::pair<std::int64_t, std::string>> cases = {
      {0, "0 bytes"},
      {1, "1 bytes"},
      {1023, "1023 bytes"},
      {1024, "1.0 KiB"},
      {1536, "1.5 KiB"},
      {(1 << 20) - 1, "1.0 MiB"},
      {1 << 20, "1.0 MiB"},
      {13107200, "12.5 MiB"},
      {std::int64_t{3} << 30, "3.0 GiB"},
      {std::int64_t{1} << 40, "1.0 TiB"},
      {INT64_MAX, "8192.0 PiB"},
      {-2048, "-2.0 KiB"}};
  for (const auto& [count, text] : cases) EXPECT_EQ(concat(Bytes(count)), text);
}

TEST(Quantity, AddsInPlace) {
  Bytes sum;
  sum += Bytes(5);
  sum -= Bytes(2);
  EXPECT_EQ(sum, Bytes(3));
}

}  // namespace
}  // namespace zero3
