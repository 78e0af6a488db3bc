/// Host memory of limited size for copies of tensors, so a thread can write them while training
/// changes the originals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include <ATen/core/Tensor.h>

#include "pentatron/base/io_thread.h"

namespace pentatron::checkpoint {

/// The memory for copies of so many bytes, at most `limit`, that a save asks for.
uint64_t staging_bytes(uint64_t bytes, uint64_t limit);

/// Copies views piece by piece into blocks. `take` gets each full block and gives it back by
/// release(), from any thread; add() waits while no block is free, and only then.
class Staging {
 public:
  /// `bytes` in all, at least two small blocks; `pinned` for copies from a GPU.
  Staging(uint64_t bytes, bool pinned);

  uint64_t capacity() const { return static_cast<uint64_t>(memory_.nbytes()); }

  /// What is in a block: `size` bytes of `item`, the next ones.
  using Piece = std::function<void(size_t item, std::span<const std::byte>)>;
  /// Appends all elements of the view, row-major. Any strides and device.
  void add(size_t item, const at::Tensor& view);
  /// Hands out the block that is not full yet.
  void flush();
  /// Called with every full block; the function keeps it until it calls release().
  void on_block(std::function<void(size_t block)> take) { take_ = std::move(take); }
  /// What lies in a block, in the order of add().
  void for_each(size_t block, const Piece& fn) const;
  void release(size_t block);

 private:
  struct Segment {
    size_t item = 0;
    size_t begin = 0, size = 0; ///< in the block
  };
  std::span<std::byte> bytes_of(size_t block) const;
  void copy(size_t item, const at::Tensor& view);

  at::Tensor memory_;
  size_t block_bytes_ = 0;
  std::vector<std::vector<Segment>> segments_; ///< by block
  std::unique_ptr<BoundedQueue<size_t>> free_;
  std::function<void(size_t)> take_;
  size_t current_ = 0, used_ = 0;
  bool has_block_ = false;
};

} // namespace pentatron::checkpoint
