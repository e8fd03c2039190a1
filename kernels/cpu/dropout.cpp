#include <cmath>

#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/task.h"

namespace zero3::cpu {
namespace {

constexpr std::int64_t kWords = 4;

PhiloxKey key_of_step(const DropoutDraw& draw) {
  const auto step = static_cast<std::uint64_t>(draw.step);
  const PhiloxCounter words = philox(
      {static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32), 0, 0}, draw.key);
  return {words[0], words[1]};
}

}  // namespace

void dropout(TensorView target, TensorView source, std::int64_t width, float probability,
             const DropoutDraw& draw, Stream& stream) {
  const std::int64_t rows = target.count() / width;
  const auto limit = static_cast<std::uint64_t>(std::ldexp(static_cast<double>(probability), 32));
  const float factor = 1.0F / (1.0F - probability);
  const PhiloxKey key = key_of_step(draw);
  visit<float, BFloat16>(target, [&]<class T>(T* to) {
    const T* from = internal::native<T>(source);
    enqueue(stream, "dropout", {target}, {source}, [=, first = draw.first_token, site = draw.site] {
      parallel_for(rows, rows_per_grain(width), [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const auto token = static_cast<std::uint64_t>(first + row);
          for (std::int64_t block = 0; block * kWords < width; ++block) {
            const PhiloxCounter words =
                philox({static_cast<std::uint32_t>(token), static_cast<std::uint32_t>(token >> 32),
                        static_cast<std::uint32_t>(block), site},
                       key);
            const std::int64_t channels = std::min(kWords, width - block * kWords);
            for (std::int64_t i = 0; i < channels; ++i) {
              const std::int64_t at = row * width + block * kWords + i;
              const bool kept = words[static_cast<std::size_t>(i)] >= limit;
              store(to + at, kept ? static_cast<float>(from[at]) * factor : 0.0F);
            }
          }
        }
      });
    });
  });
}

}  // namespace zero3::cpu
