#include "pentatron/checkpoint/staging.h"

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>

#include "pentatron/base/error.h"

namespace pentatron::checkpoint {

namespace {

/// Large enough that handing them over costs nothing, small enough to begin writing early.
constexpr uint64_t kLargestBlock = uint64_t{4} << 20, kSmallestBlock = uint64_t{64} << 10;
/// Beyond the bytes themselves, for blocks that are not quite full.
constexpr uint64_t kSlack = uint64_t{8} << 20;

uint64_t block_for(uint64_t bytes) {
  return std::clamp(bytes / 2, kSmallestBlock, kLargestBlock);
}
uint64_t blocks_for(uint64_t bytes) {
  return std::max<uint64_t>(2, bytes / block_for(bytes));
}

} // namespace

uint64_t staging_bytes(uint64_t bytes, uint64_t limit) {
  const uint64_t wanted = std::min(limit, bytes + bytes / 256 + kSlack);
  return blocks_for(wanted) * block_for(wanted);
}

Staging::Staging(uint64_t bytes, bool pinned) {
  block_bytes_ = static_cast<size_t>(block_for(bytes));
  const auto blocks = static_cast<size_t>(blocks_for(bytes));
  memory_ = at::empty({static_cast<int64_t>(blocks * block_bytes_)},
                      at::TensorOptions(at::kByte).pinned_memory(pinned));
  segments_.resize(blocks);
  free_ = std::make_unique<BoundedQueue<size_t>>(blocks);
  for (size_t i = 0; i < blocks; ++i) free_->push(i);
}

std::span<std::byte> Staging::bytes_of(size_t block) const {
  return {static_cast<std::byte*>(memory_.data_ptr()) + block * block_bytes_, block_bytes_};
}

void Staging::add(size_t item, const at::Tensor& view) {
  if (view.numel() == 0) return;
  // One dimension can be cut anywhere; rows otherwise.
  const bool flat = view.is_contiguous();
  at::Tensor rest = flat ? view.as_strided({view.numel()}, {1}) : view;
  const auto element = static_cast<size_t>(view.element_size());
  while (rest.defined()) {
    if (has_block_ && block_bytes_ - used_ < element) flush();
    if (!has_block_) {
      current_ = *free_->pop();
      segments_[current_].clear();
      used_ = 0;
      has_block_ = true;
    }
    const auto room = static_cast<int64_t>((block_bytes_ - used_) / element);
    if (rest.numel() <= room) return copy(item, rest);
    int64_t d = 0;
    while (rest.size(d) == 1) ++d;
    const int64_t rows = rest.size(d);
    const int64_t fit = room / (rest.numel() / rows);
    if (fit > 0) {
      copy(item, rest.narrow(d, 0, fit));
    } else {
      add(item, rest.select(d, 0));
    }
    const int64_t done = std::max<int64_t>(fit, 1);
    rest = done < rows ? rest.narrow(d, done, rows - done) : at::Tensor();
  }
}

void Staging::copy(size_t item, const at::Tensor& view) {
  const size_t size = static_cast<size_t>(view.nbytes());
  std::byte* const to = bytes_of(current_).data() + used_;
  if (view.is_cpu() && view.is_contiguous()) {
    std::memcpy(to, view.const_data_ptr(), size);
  } else if (reinterpret_cast<uintptr_t>(to) % view.element_size() == 0) {
    at::from_blob(to, view.sizes(), view.options().device(at::kCPU)).copy_(view);
  } else { // behind a smaller type
    const at::Tensor host = view.cpu().contiguous();
    std::memcpy(to, host.const_data_ptr(), size);
  }
  std::vector<Segment>& segments = segments_[current_];
  if (!segments.empty() && segments.back().item == item) {
    segments.back().size += size;
  } else {
    segments.push_back({.item = item, .begin = used_, .size = size});
  }
  used_ += size;
}

void Staging::flush() {
  if (!has_block_) return;
  has_block_ = false;
  PT_DCHECK(take_ != nullptr);
  take_(current_);
}

void Staging::for_each(size_t block, const Piece& fn) const {
  for (const Segment& s : segments_[block]) fn(s.item, bytes_of(block).subspan(s.begin, s.size));
}

void Staging::release(size_t block) {
  free_->push(block);
}

} // namespace pentatron::checkpoint
