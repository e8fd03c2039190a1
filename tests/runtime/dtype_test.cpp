#include <gtest/gtest.h>

#include <array>
#include <string>

#include <zero3/dtype.h>
#include <zero3/error.h>
#include "support/contains.h"
#include "support/thrown.h"

namespace zero3 {
namespace {

constexpr std::array kAll = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kU8,
                             DType::kU16, DType::kU32,  DType::kU64, DType::kI32, DType::kI64};

static_assert(size_of(DType::kU8) == 1);
static_assert(size_of(DType::kBF16) == 2 && size_of(DType::kF16) == 2 && size_of(DType::kU16) == 2);
static_assert(size_of(DType::kF32) == 4 && size_of(DType::kU32) == 4 && size_of(DType::kI32) == 4);
static_assert(size_of(DType::kF64) == 8 && size_of(DType::kU64) == 8 && size_of(DType::kI64) == 8);
static_assert(is_floating(DType::kBF16) && is_floating(DType::kF64) && !is_floating(DType::kI32));

TEST(DType, NamesAreReadBack) {
  for (const DType dtype : kAll) EXPECT_EQ(parse_dtype(name_of(dtype)), dtype) << name_of(dtype);
}

TEST(DType, PrintsItsName) {
  EXPECT_EQ(concat(DType::kBF16), "bf16");
}

TEST(DType, UnknownNamesListTheKnown) {
  EXPECT_TRUE(
      test::contains(test::thrown<UsageError>([] { static_cast<void>(parse_dtype("float32")); }),
                     {"'float32'", "fp32", "bf16", "int64"}));
}

}  // namespace
}  // namespace zero3
