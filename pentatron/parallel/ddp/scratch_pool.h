/// Flat vectors that are lent and come back, so that a step allocates nothing once the pool has
/// seen one: there are never more buffers than were lent at once.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/memory/counting_allocator.h"

namespace pentatron::parallel {

class ScratchPool {
 public:
  /// `category`: of the values that the vectors hold.
  ScratchPool(at::TensorOptions options, nn::MemoryCategory category)
      : options_(options), category_(category) {}

  /// A vector of `n` elements; what it holds is undefined.
  at::Tensor take(int64_t n);
  /// Nobody may hold views of it any more.
  void give_back(const at::Tensor& vector);

  /// Whether take(n) finds a buffer.
  bool has(int64_t n) const;
  /// Elements of the buffer that a lent vector is in.
  static int64_t capacity(const at::Tensor& vector);

 private:
  at::TensorOptions options_;
  nn::MemoryCategory category_;
  std::vector<at::Tensor> free_; // whole buffers
};

} // namespace pentatron::parallel
