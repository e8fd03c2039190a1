#pragma once

#include <compare>
#include <cstdint>
#include <iosfwd>

#include <zero3/dtype.h>

namespace zero3 {

/// A count that cannot be confused with a count of something else. Signed, 64 bits everywhere.
template <class Unit>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(std::int64_t count) : count_(count) {}

  [[nodiscard]] constexpr std::int64_t count() const { return count_; }

  // NOLINTNEXTLINE(modernize-use-nullptr): takes the comparison with literal 0 for a pointer.
  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.count_ + b.count_);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.count_ - b.count_);
  }
  friend constexpr Quantity operator*(Quantity a, std::int64_t n) { return Quantity(a.count_ * n); }
  friend constexpr Quantity operator*(std::int64_t n, Quantity a) { return Quantity(a.count_ * n); }
  friend constexpr Quantity operator/(Quantity a, std::int64_t n) { return Quantity(a.count_ / n); }
  friend constexpr std::int64_t operator/(Quantity a, Quantity b) { return a.count_ / b.count_; }
  constexpr Quantity& operator+=(Quantity other) { return *this = *this + other; }
  constexpr Quantity& operator-=(Quantity other) { return *this = *this - other; }

 private:
  std::int64_t count_ = 0;
};

struct ElementUnit {};
struct ByteUnit {};
using Elements = Quantity<ElementUnit>;
using Bytes = Quantity<ByteUnit>;

/// Prints the bare count of elements.
std::ostream& operator<<(std::ostream& out, Elements n);
/// Prints the size in the largest binary unit that keeps a digit before the point: "12.5 MiB", "300
/// bytes".
std::ostream& operator<<(std::ostream& out, Bytes n);

/// The only bridge between the two units.
[[nodiscard]] constexpr Bytes bytes_of(Elements n, DType dtype) {
  return Bytes(n.count() * size_of(dtype));
}

[[nodiscard]] constexpr std::int64_t div_ceil(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t a, std::int64_t multiple) {
  return div_ceil(a, multiple) * multiple;
}

/// Every block of device memory starts at, and is charged in, multiples of this.
inline constexpr std::int64_t kAlignment = 64;
[[nodiscard]] constexpr Bytes aligned(Bytes n) {
  return Bytes(round_up(n.count(), kAlignment));
}

}  // namespace zero3
