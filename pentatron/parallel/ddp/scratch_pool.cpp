#include "pentatron/parallel/ddp/scratch_pool.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace pentatron::parallel {

at::Tensor ScratchPool::take(int64_t n) {
  const auto smaller = [](const at::Tensor& a, const at::Tensor& b) {
    return a.numel() < b.numel();
  };
  std::sort(free_.begin(), free_.end(), smaller);
  const auto fits = std::find_if(free_.begin(), free_.end(),
                                 [n](const at::Tensor& buffer) { return buffer.numel() >= n; });
  if (fits != free_.end()) {
    const at::Tensor buffer = *fits;
    free_.erase(fits);
    return buffer.narrow(0, 0, n);
  }
  if (!free_.empty()) free_.pop_back(); // a larger one takes its place
  const nn::MemoryScope scope(category_);
  return at::empty({n}, options_);
}

void ScratchPool::give_back(const at::Tensor& vector) {
  free_.push_back(vector.as_strided({capacity(vector)}, {1}, 0));
}

bool ScratchPool::has(int64_t n) const {
  return std::ranges::any_of(free_, [n](const at::Tensor& buffer) { return buffer.numel() >= n; });
}

int64_t ScratchPool::capacity(const at::Tensor& vector) {
  return static_cast<int64_t>(vector.storage().nbytes() /
                              static_cast<size_t>(vector.element_size()));
}

} // namespace pentatron::parallel
