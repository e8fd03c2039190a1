#include "grad_clip.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include <zero3/copy.h>
#include <zero3/error.h>
#include <zero3/reduce.h>

namespace zero3 {
namespace {

std::int64_t header_size(const std::deque<ParamGroup>& groups, int micro_steps) {
  return 1 + micro_steps + static_cast<std::int64_t>(groups.size());
}

std::int64_t norm_blocks(const SubGroup& sub) {
  return sub.layout.trainable ? div_ceil(sub.layout.shard.count(), kNormBlock) : 0;
}

std::int64_t report_size(const std::deque<ParamGroup>& groups, int micro_steps) {
  std::int64_t size = header_size(groups, micro_steps);
  for (const ParamGroup& group : groups) {
    for (const SubGroup& sub : group.sub_groups) size += norm_blocks(sub);
  }
  // Other exchanges use the blocks' part, so it is never empty.
  return std::max(size, header_size(groups, micro_steps) + 64);
}

/// Refuses what no rank sends: the cast would be undefined.
std::int64_t reported_count(double reported, int rank, std::string_view of) {
  constexpr double kMostExact = 9007199254740992.0;  // 2^53
  if (reported >= 0 && reported <= kMostExact) return static_cast<std::int64_t>(reported);
  throw CommError(concat("rank ", rank, " reported ", reported, " ", of,
                         ", which is no count: its report was damaged on the way to this rank; "
                         "check the network, and whether another stream writes to the engine's "
                         "memory"));
}

}  // namespace

double clip_factor(double norm, double clip) {
  return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
}

GlobalNorm::GlobalNorm(const Config& config)
    : config_(config),
      header_(header_size(config.groups, config.micro_steps)),
      report_size_(report_size(config.groups, config.micro_steps)),
      report_(Elements(report_size_), DType::kF64, MemoryTag::kWorkspace, config.compute),
      all_(Elements(report_size_ * config.communicator.world_size()), DType::kF64,
           MemoryTag::kWorkspace, config.compute),
      host_report_(static_cast<std::size_t>(report_size_)),
      host_all_(static_cast<std::size_t>(report_size_ * config.communicator.world_size())) {
  begin_step();
}

Bytes GlobalNorm::workspace_bytes(const std::deque<ParamGroup>& groups, int world_size,
                                  int micro_steps) {
  const std::int64_t size = report_size(groups, micro_steps);
  return aligned(bytes_of(Elements(size), DType::kF64)) +
         aligned(bytes_of(Elements(size * world_size), DType::kF64));
}

void GlobalNorm::begin_step() {
  fill_zero(report_.view().slice(0, header_), config_.compute);
}

void GlobalNorm::report_loss(int micro_step, TensorView loss_sum) {
  ZERO3_CHECK(loss_sum.count() == 1 && loss_sum.dtype() == DType::kF64,
              "a loss sum is one fp64 element, not ", loss_sum.count(), " of ", loss_sum.dtype());
  copy(report_.view().slice(1 + micro_step, 1), loss_sum, config_.compute);
}

void GlobalNorm::exchange(std::int64_t begin, std::int64_t count, std::string_view label) {
  const int world_size = config_.communicator.world_size();
  const TensorView all = all_.view().slice(0, count * world_size);
  config_.gather.wait(config_.compute.record());
  config_.communicator.all_gather(all, report_.view().slice(begin, count), label, config_.gather);
  copy_to_host(host_all_.data(), all, config_.gather);
  config_.gather.synchronize();
}

StepSums GlobalNorm::finish_step(std::int64_t tokens) {
  const auto groups = static_cast<std::int64_t>(config_.groups.size());
  host_report_[0] = static_cast<double>(tokens);
  for (std::int64_t g = 0; g < groups; ++g) {
    host_report_[static_cast<std::size_t>(1 + g)] =
        config_.groups[static_cast<std::size_t>(g)].used_in_step ? 1.0 : 0.0;
  }
  copy_from_host(report_.view().slice(0, 1), host_report_.data(), config_.compute);
  copy_from_host(report_.view().slice(1 + config_.micro_steps, groups), host_report_.data() + 1,
                 config_.compute);
  std::int64_t at = header_;
  for (const ParamGroup& group : config_.groups) {
    for (const SubGroup& sub : group.sub_groups) {
      if (norm_blocks(sub) == 0) continue;
      block_square_sums(report_.view().slice(at, norm_blocks(sub)), sub.grad.view(),
                        config_.compute);
      at += norm_blocks(sub);
    }
  }
  exchange(0, report_size_, "global norm");
  return fold_reports();
}

StepSums GlobalNorm::fold_reports() {
  const int world_size = config_.communicator.world_size();
  const auto reported = [&](int rank, std::int64_t index) {
    return host_all_[static_cast<std::size_t>(rank * report_size_ + index)];
  };
  StepSums sums;
  for (int rank = 0; rank < world_size; ++rank)
    sums.tokens += reported_count(reported(rank, 0), rank, "tokens");
  for (int micro_step = 0; micro_step < config_.micro_steps; ++micro_step) {
    for (int rank = 0; rank < world_size; ++rank) sums.loss_sum += reported(rank, 1 + micro_step);
  }
  std::optional<BadBlock> bad;
  std::int64_t at = header_;
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    bool used = false;
    for (int rank = 0; rank < world_size; ++rank)
      used = used || reported(rank, 1 + config_.micro_steps + static_cast<std::int64_t>(g)) != 0.0;
    sums.used.push_back(used);
    for (std::size_t s = 0; s < config_.groups[g].sub_groups.size(); ++s) {
      const std::int64_t blocks = norm_blocks(config_.groups[g].sub_groups[s]);
      for (int rank = 0; rank < world_size; ++rank) {
        for (std::int64_t block = 0; block < blocks; ++block) {
          const double squares = reported(rank, at + block);
          if (!std::isfinite(squares) && !bad) bad = BadBlock{rank, g, s, block};
          sums.squares += squares;
        }
      }
      at += blocks;
    }
  }
  if (bad) sums.first_bad_parameter = find_bad(*bad);
  return sums;
}

std::string GlobalNorm::find_bad(const BadBlock& bad_block) {
  const ParamGroup& group = config_.groups[bad_block.group];
  const SubGroup& sub = group.sub_groups[bad_block.sub_group];
  const int rank = bad_block.rank;
  const std::int64_t begin = bad_block.block * kNormBlock;
  double place = -1;
  if (rank == config_.communicator.rank()) {
    std::vector<float> values(
        static_cast<std::size_t>(std::min(kNormBlock, sub.layout.shard.count() - begin)));
    copy_to_host(values.data(),
                 sub.grad.view().slice(begin, static_cast<std::int64_t>(values.size())),
                 config_.compute);
    config_.compute.synchronize();
    const auto bad =
        std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
    place = static_cast<double>(begin + (bad - values.begin()));
  }
  const std::vector<double> places = gather_values({&place, 1}, "first bad parameter");
  const Elements offset =
      sub.layout.shard * rank + Elements(reported_count(places[static_cast<std::size_t>(rank)],
                                                        rank, "elements before its first bad one"));
  for (std::size_t i = sub.layout.params.size(); i-- > 0;) {
    if (sub.layout.offsets[i] <= offset)
      return group.spec.params[static_cast<std::size_t>(sub.layout.params[i])].name;
  }
  return group.spec.name;
}

std::uint64_t GlobalNorm::checksum(TensorView values, std::int64_t first_index) {
  const TensorView sum = report_.view().slice(header_, 1).as(DType::kU64);
  zero3::checksum(sum, values, first_index, config_.compute);
  std::uint64_t result = 0;
  copy_to_host(&result, sum, config_.compute);
  config_.compute.synchronize();
  return result;
}

std::uint64_t GlobalNorm::add_over_ranks(std::uint64_t value, std::string_view label) {
  // A double carries 32 bits exactly.
  const double halves[] = {static_cast<double>(value >> 32),
                           static_cast<double>(value & 0xffffffffU)};
  std::uint64_t sum = 0;
  const std::vector<double> all = gather_values(halves, label);
  for (std::size_t i = 0; i < all.size(); i += 2) {
    sum += (static_cast<std::uint64_t>(all[i]) << 32) + static_cast<std::uint64_t>(all[i + 1]);
  }
  return sum;
}

std::vector<double> GlobalNorm::gather_values(std::span<const double> values,
                                              std::string_view label) {
  const int world_size = config_.communicator.world_size();
  std::vector<double> result(values.size() * static_cast<std::size_t>(world_size));
  for (std::size_t done = 0; done < values.size();) {
    const std::size_t count =
        std::min(values.size() - done, static_cast<std::size_t>(report_size_ - header_));
    copy_from_host(report_.view().slice(header_, static_cast<std::int64_t>(count)),
                   values.data() + done, config_.compute);
    exchange(header_, static_cast<std::int64_t>(count), label);
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(world_size); ++rank) {
      std::copy_n(host_all_.begin() + static_cast<std::ptrdiff_t>(rank * count), count,
                  result.begin() + static_cast<std::ptrdiff_t>(rank * values.size() + done));
    }
    done += count;
  }
  return result;
}

}  // namespace zero3
