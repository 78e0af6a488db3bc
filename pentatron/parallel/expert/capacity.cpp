#include "pentatron/parallel/expert/capacity.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "pentatron/nn/host_copies.h"

namespace pentatron::parallel {

int64_t expert_capacity(int64_t tokens, int64_t top_k, int64_t experts, double factor) {
  const double each = static_cast<double>(tokens) * static_cast<double>(top_k) /
                      static_cast<double>(experts) * factor;
  if (each >= static_cast<double>(tokens)) return tokens;
  return static_cast<int64_t>(std::ceil(each * (1 - 1e-12))); // 50 x 1.1 is 55
}

at::Tensor kept_choices(const at::Tensor& experts, const at::Tensor& probs, const at::Tensor& real,
                        int64_t num_experts, const CapacityOptions& o) {
  const int64_t tokens = experts.size(0), k = experts.size(1);
  const int64_t capacity = expert_capacity(tokens, k, num_experts, o.factor);
  const at::Tensor chosen = nn::host_values(experts);
  const at::Tensor weight = nn::host_values(probs.detach().to(at::kDouble));
  const int64_t* const expert = chosen.const_data_ptr<int64_t>();
  const double* const prob = weight.const_data_ptr<double>();
  std::vector<int64_t> order(static_cast<size_t>(tokens * k));
  std::iota(order.begin(), order.end(), 0);
  if (!o.by_position)
    std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return prob[a] > prob[b]; });
  if (real.defined()) {
    const at::Tensor is_real = nn::host_values(real);
    std::stable_partition(order.begin(), order.end(),
                          [&](int64_t i) { return is_real.const_data_ptr<bool>()[i / k]; });
  }
  const at::Tensor kept = at::zeros({tokens, k}, at::kBool);
  bool* const keeps = kept.mutable_data_ptr<bool>();
  std::vector<int64_t> taken(static_cast<size_t>(num_experts), 0);
  for (const int64_t i : order) keeps[i] = taken[static_cast<size_t>(expert[i])]++ < capacity;
  return nn::to_device(kept, experts.device());
}

} // namespace pentatron::parallel
