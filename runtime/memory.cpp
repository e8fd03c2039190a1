#include <zero3/memory_resources.h>

#include <algorithm>
#include <iterator>
#include <ostream>
#include <string>
#include <utility>

#include <zero3/error.h>

namespace zero3 {
namespace {

constexpr std::array<std::string_view, kMemoryTagCount> kTagNames = {
    "shards", "gathered", "grads", "optimizer", "activations", "checkpoints", "workspace"};

std::string table(const MemoryByTag& in_use) {
  std::string text;
  for (std::size_t i = 0; i < kMemoryTagCount; ++i) {
    if (in_use.bytes[i].count() == 0) continue;
    text += concat(text.empty() ? "" : ", ", kTagNames[i], ' ', in_use.bytes[i]);
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

std::string_view name_of(MemoryTag tag) {
  return kTagNames[static_cast<std::size_t>(tag)];
}
std::ostream& operator<<(std::ostream& out, MemoryTag tag) {
  return out << name_of(tag);
}

Bytes MemoryByTag::total() const {
  Bytes sum;
  for (const Bytes b : bytes) sum += b;
  return sum;
}

void* StatsResource::allocate(Bytes size, MemoryTag tag, Stream& stream) {
  void* block = upstream_.allocate(size, tag, stream);
  const std::scoped_lock lock(mutex_);
  in_use_[tag] += size;
  peak_[tag] = std::max(peak_[tag], in_use_[tag]);
  peak_total_ = std::max(peak_total_, in_use_.total());
  ++allocations_;
  return block;
}

void StatsResource::deallocate(void* block, Bytes size, MemoryTag tag, Stream& stream) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    in_use_[tag] -= size;
  }
  upstream_.deallocate(block, size, tag, stream);
}

MemoryByTag StatsResource::in_use() const {
  const std::scoped_lock lock(mutex_);
  return in_use_;
}

MemoryByTag StatsResource::peak() const {
  const std::scoped_lock lock(mutex_);
  return peak_;
}

Bytes StatsResource::peak_total() const {
  const std::scoped_lock lock(mutex_);
  return peak_total_;
}

std::int64_t StatsResource::allocations() const {
  const std::scoped_lock lock(mutex_);
  return allocations_;
}

void StatsResource::reset_peak() {
  const std::scoped_lock lock(mutex_);
  peak_ = in_use_;
  peak_total_ = in_use_.total();
}

void* LimitResource::allocate(Bytes size, MemoryTag tag, Stream& stream) {
  {
    const std::scoped_lock lock(mutex_);
    const Bytes used = in_use_.total();
    if (size > limit_ - used) {
      throw OutOfMemoryError(concat(
          "out of memory: ", size, " for ", tag, " with ", used, " of ", limit_, " in use (",
          table(in_use_), "); raise the limit or make the model, batch or ", "sequence smaller"));
    }
    in_use_[tag] += size;
  }
  try {
    return upstream_.allocate(size, tag, stream);
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    in_use_[tag] -= size;
    throw;
  }
}

void LimitResource::deallocate(void* block, Bytes size, MemoryTag tag, Stream& stream) noexcept {
  upstream_.deallocate(block, size, tag, stream);
  const std::scoped_lock lock(mutex_);
  in_use_[tag] -= size;
}

void LimitResource::set_limit(Bytes limit) {
  const std::scoped_lock lock(mutex_);
  limit_ = limit;
}

PoolResource::~PoolResource() {
  trim();
}

void* PoolResource::allocate(Bytes size, MemoryTag tag, Stream& stream) {
  if (size.count() == 0) return nullptr;
  if (std::optional<Kept> kept = take_kept(size, stream.id())) {
    if (kept->stream_id == stream.id()) return kept->block;
    try {
      stream.wait(kept->returned);
    } catch (...) {
      keep(size, *std::move(kept));
      throw;
    }
    return kept->block;
  }
  void* block = take_fresh(size, tag);
  const std::scoped_lock lock(mutex_);
  reserved_ += size;
  ++blocks_taken_;
  return block;
}

std::optional<PoolResource::Kept> PoolResource::take_kept(Bytes size, std::uint64_t stream_id) {
  const std::scoped_lock lock(mutex_);
  const auto found = kept_.find(size.count());
  if (found == kept_.end() || found->second.empty()) return std::nullopt;
  std::vector<Kept>& kept = found->second;
  // A block that this stream returned itself needs no wait; else the one returned first is free
  // soonest.
  const auto own = std::find_if(kept.rbegin(), kept.rend(),
                                [&](const Kept& k) { return k.stream_id == stream_id; });
  const auto chosen = own == kept.rend() ? kept.begin() : std::prev(own.base());
  Kept taken = std::move(*chosen);
  kept.erase(chosen);
  return taken;
}

void* PoolResource::take_fresh(Bytes size, MemoryTag tag) {
  try {
    return source_.take(size);
  } catch (const OutOfMemoryError&) {
    // Blocks of other sizes may be kept: worth a wait for their last users.
    trim();
  }
  try {
    return source_.take(size);
  } catch (const OutOfMemoryError& error) {
    throw OutOfMemoryError(
        concat(error.what(), " for ", tag, " (", reserved(), " in blocks of this device)"));
  }
}

void PoolResource::keep(Bytes size, Kept kept) {
  const std::scoped_lock lock(mutex_);
  kept_[size.count()].push_back(std::move(kept));
}

void PoolResource::deallocate(void* block, Bytes size, MemoryTag, Stream& stream) noexcept {
  if (block == nullptr) return;
  try {
    // For order alone: the next user of the memory has nothing to do with an error of this one.
    keep(size, {block, stream.id(), stream.record().order_only()});
  } catch (...) {
    // No memory for the bookkeeping: the block is lost to this process, which is about to fail
    // anyway.
  }
}

Bytes PoolResource::reserved() const {
  const std::scoped_lock lock(mutex_);
  return reserved_;
}

std::int64_t PoolResource::blocks_taken() const {
  const std::scoped_lock lock(mutex_);
  return blocks_taken_;
}

void PoolResource::trim() noexcept {
  std::map<std::int64_t, std::vector<Kept>> kept;
  {
    const std::scoped_lock lock(mutex_);
    kept.swap(kept_);
  }
  for (auto& [size, blocks] : kept) {
    for (Kept& k : blocks) give_back(Bytes(size), std::move(k));
  }
}

void PoolResource::give_back(Bytes size, Kept kept) noexcept {
  try {
    kept.returned.synchronize();
  } catch (...) {
    // An operation's error belongs to its stream; here only its end matters.
  }
  try {
    if (!kept.returned.complete()) return keep(size, std::move(kept));
  } catch (...) {
    return;  // in a deadlock the block stays with its last users
  }
  source_.give(kept.block, size);
  const std::scoped_lock lock(mutex_);
  reserved_ -= size;
}

}  // namespace zero3
