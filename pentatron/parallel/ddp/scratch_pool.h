/// Flat vectors that are lent and come back, so that a step allocates nothing once the pool has
/// seen one: there are never more buffers than were lent at once.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pentatron::parallel {

class ScratchPool {
 public:
  explicit ScratchPool(at::TensorOptions options) : options_(options) {}

  /// A vector of `n` elements; what it holds is undefined.
  at::Tensor take(int64_t n);
  /// Nobody may hold views of it any more.
  void give_back(const at::Tensor& vector);

 private:
  at::TensorOptions options_;
  std::vector<at::Tensor> free_; // whole buffers
};

} // namespace pentatron::parallel
