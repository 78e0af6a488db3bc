/// Flat vectors that are lent and come back, so that a step allocates nothing once the pool has
/// seen one: of vectors of similar size there are never more buffers than were lent at once. A
/// small vector does not take a large buffer, which then would have to be made twice.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/memory/counting_allocator.h"

namespace pentatron::parallel {

class ScratchPool {
 public:
  /// `category`: what its memory counts as.
  ScratchPool(at::TensorOptions options, nn::MemoryCategory category)
      : options_(options), category_(category) {}

  /// A vector of `n` elements; what it holds is undefined.
  at::Tensor take(int64_t n);
  /// Nobody may hold views of it any more.
  void give_back(const at::Tensor& vector);

 private:
  static constexpr int64_t kWaste = 4; ///< a buffer is at most so many times as large as needed

  at::TensorOptions options_;
  nn::MemoryCategory category_;
  std::vector<at::Tensor> free_; // whole buffers
};

} // namespace pentatron::parallel
