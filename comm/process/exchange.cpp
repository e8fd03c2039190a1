#include "process/exchange.h"

#include <algorithm>
#include <utility>

#include <zero3/units.h>
#include "payload.h"

namespace zero3::process {
namespace {

using collective::Range;
using collective::Step;

/// Of one area of the staging, over all ranks; equal on all, as pieces are what messages carry.
constexpr std::size_t kAreaBytes = std::size_t{2} << 20;
/// Below this a piece costs more to announce than to move.
constexpr std::size_t kSmallestPiece = std::size_t{16} << 10;

/// Of two pieces under way.
std::size_t slot_of(std::int64_t number) {
  return static_cast<std::size_t>(number % 2);
}

const std::byte* at(const void* data, std::int64_t element, DType dtype) {
  return static_cast<const std::byte*>(data) + element * size_of(dtype);
}

}  // namespace

Exchange::Exchange(Messages& messages, int channel, const std::vector<int>& members, int rank,
                   std::vector<int> far)
    : messages_(messages),
      channel_(channel),
      members_(members),
      rank_(rank),
      far_(std::move(far)),
      piece_bytes_(std::max(kSmallestPiece, kAreaBytes / members.size() / 64 * 64)) {}

void Exchange::prepare(const Step& step, const void* own, Transfer::MayStart may_start) {
  if (step.place) {
    begin_parts(step, own, std::move(may_start));
  } else if (step.fold) {
    begin_pieces(step, own, 0, may_start);
  }
}

void Exchange::run(const Step& step, std::span<const void* const> sources, const Await& await) {
  if (step.place) keep_all(step, sources, await);
  if (step.fold) fold_all(step, sources, await);
}

void Exchange::give_up() noexcept {
  for (auto& transfer : under_way_) {
    if (transfer) messages_.give_up(*transfer);
    transfer.reset();
  }
}

void Exchange::begin(std::size_t slot, std::shared_ptr<Transfer> transfer) {
  if (transfer->complete()) {
    transfer->close();
  } else {
    messages_.begin(transfer);
  }
  under_way_[slot] = std::move(transfer);
}

void Exchange::begin_parts(const Step& step, const void* own, Transfer::MayStart may_start) {
  const bool narrows = step.wire != step.dtype;
  // Every reader gets the same, so it is rounded once, in its place here, and sent from there.
  if (narrows) keep(step, rank_, rank_, own);
  std::vector<Transfer::Send> sends;
  std::vector<Transfer::Receive> receives;
  for (const int peer : far_) {
    const Range out = step.range(peer, rank_);
    const std::byte* data = narrows ? step.place(rank_) : at(own, out.begin, step.dtype);
    if (out.count > 0) sends.push_back({in_world(peer), data, out.count * size_of(step.wire)});
    const Range in = step.range(rank_, peer);
    if (in.count == 0) continue;
    receives.push_back({in_world(peer), step.place(peer), in.count * size_of(step.wire)});
  }
  begin(0, std::make_shared<Transfer>(channel_, std::move(sends), std::move(receives),
                                      std::move(may_start)));
}

void Exchange::keep_all(const Step& step, std::span<const void* const> sources,
                        const Await& await) {
  if (!under_way_[0]) begin_parts(step, sources[static_cast<std::size_t>(rank_)], nullptr);
  const bool narrows = step.wire != step.dtype;
  for (std::size_t peer = 0; peer < sources.size(); ++peer) {
    const int owner = static_cast<int>(peer);
    const bool done = narrows && owner == rank_;
    if (sources[peer] != nullptr && !done) keep(step, rank_, owner, sources[peer]);
  }
  await(*under_way_[0]);
  under_way_[0].reset();
}

std::int64_t Exchange::pieces_of(const Step& step) const {
  std::int64_t most = step.range(rank_, rank_).count;
  for (const int peer : far_) most = std::max(most, step.range(peer, rank_).count);
  return div_ceil(most * size_of(step.dtype), static_cast<std::int64_t>(piece_bytes_));
}

void Exchange::fold_all(const Step& step, std::span<const void* const> sources,
                        const Await& await) {
  const std::int64_t pieces = pieces_of(step);
  const void* own = sources[static_cast<std::size_t>(rank_)];
  for (std::int64_t number = 0; number < pieces; ++number) {
    begin_pieces(step, own, number, nullptr);
    std::shared_ptr<Transfer>& transfer = under_way_[slot_of(number)];
    await(*transfer);
    transfer.reset();
    fold_piece(step, sources, number);
  }
}

void Exchange::begin_pieces(const Step& step, const void* own, std::int64_t first,
                            const Transfer::MayStart& may_start) {
  // One piece moves while the one before is folded.
  const std::int64_t end = std::min(pieces_of(step), first + 2);
  for (std::int64_t number = first; number < end; ++number) {
    if (!under_way_[slot_of(number)]) begin_piece(step, own, number, may_start);
  }
}

namespace {

/// The elements of piece `number` of a range, counted from the beginning of the range.
Range piece_of(const Range& whole, std::int64_t number, std::int64_t length) {
  const std::int64_t begin = std::min(whole.count, number * length);
  return {begin, std::min(length, whole.count - begin)};
}

}  // namespace

void Exchange::begin_piece(const Step& step, const void* own, std::int64_t number,
                           Transfer::MayStart may_start) {
  const std::int64_t length = static_cast<std::int64_t>(piece_bytes_) / size_of(step.dtype);
  const auto slot = static_cast<int>(slot_of(number));
  const Range in = piece_of(step.range(rank_, rank_), number, length);
  std::vector<Transfer::Send> sends;
  std::vector<Transfer::Receive> receives;
  for (std::size_t i = 0; i < far_.size(); ++i) {
    const int peer = in_world(far_[i]);
    const Range theirs = step.range(far_[i], rank_);
    const Range out = piece_of(theirs, number, length);
    if (out.count > 0) {
      const std::byte* data = at(own, theirs.begin + out.begin, step.dtype);
      if (step.wire != step.dtype) {
        std::byte* rounded = staging(kOutgoing0 + slot, i);
        collective::narrow(rounded, step.wire, reinterpret_cast<const float*>(data), out.count);
        data = rounded;
      }
      sends.push_back({peer, data, out.count * size_of(step.wire)});
    }
    if (in.count == 0) continue;
    receives.push_back({peer, staging(kLanding0 + slot, i), in.count * size_of(step.wire)});
  }
  begin(slot_of(number), std::make_shared<Transfer>(channel_, std::move(sends), std::move(receives),
                                                    std::move(may_start)));
}

void Exchange::fold_piece(const Step& step, std::span<const void* const> sources,
                          std::int64_t number) {
  const std::int64_t length = static_cast<std::int64_t>(piece_bytes_) / size_of(step.dtype);
  const Range own = step.range(rank_, rank_);
  const Range piece = piece_of(own, number, length);
  if (piece.count == 0) return;
  std::vector<const void*> parts;
  for (const void* source : sources) {
    parts.push_back(source == nullptr ? nullptr : at(source, own.begin + piece.begin, step.dtype));
  }
  for (std::size_t i = 0; i < far_.size(); ++i) {
    const std::byte* landed = staging(kLanding0 + static_cast<int>(slot_of(number)), i);
    if (step.wire != step.dtype) {
      std::byte* widened = staging(kWidened, i);
      collective::widen(reinterpret_cast<float*>(widened), landed, step.wire, piece.count);
      landed = widened;
    }
    parts[static_cast<std::size_t>(far_[i])] = landed;
  }
  step.fold(parts, piece.begin, piece.count);
}

std::byte* Exchange::staging(int area, std::size_t far_index) {
  if (staging_.empty()) staging_.resize(piece_bytes_ * far_.size() * kAreas);
  return staging_.data() +
         (static_cast<std::size_t>(area) * far_.size() + far_index) * piece_bytes_;
}

}  // namespace zero3::process
