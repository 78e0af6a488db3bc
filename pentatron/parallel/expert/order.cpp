#include "pentatron/parallel/expert/order.h"

#include <ATen/ATen.h>

#include <atomic>
#include <numeric>
#include <vector>

namespace pentatron::parallel {

namespace {

std::atomic<bool> operators_on_cpus = false;

/// How many things there are of each key, and in the last place of those without one. [K + 1]
at::Tensor key_counts(const at::Tensor& keys, int64_t num_keys) {
  const at::Tensor last = keys.masked_fill(keys < 0, num_keys);
  return at::zeros({num_keys + 1}, keys.options())
      .scatter_add_(0, last, at::ones_like(keys)); // whole numbers: in any order
}

Order order_on_host(const at::Tensor& keys, const at::Tensor& counts) {
  const int64_t* const key = keys.const_data_ptr<int64_t>();
  const int64_t* const count = counts.const_data_ptr<int64_t>();
  std::vector<int64_t> next(static_cast<size_t>(counts.numel()) + 1);
  std::partial_sum(count, count + counts.numel(), next.begin() + 1);
  Order order{at::full_like(keys, -1), at::full({next.back()}, -1, keys.options())};
  auto* const place = order.place.mutable_data_ptr<int64_t>();
  auto* const thing = order.thing.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < keys.numel(); ++i) {
    if (key[i] < 0) continue;
    place[i] = next[static_cast<size_t>(key[i])]++;
    thing[place[i]] = i;
  }
  return order;
}

} // namespace

at::Tensor counts_of_keys(const at::Tensor& keys, int64_t num_keys, int64_t least) {
  return key_counts(keys, num_keys).narrow(0, 0, num_keys).clamp_min(least);
}

Order order_by_key(const at::Tensor& keys, const at::Tensor& counts, int64_t least) {
  return keys.is_cpu() && !operators_on_cpus.load(std::memory_order_relaxed)
             ? order_on_host(keys, counts)
             : order_by_operators(keys, counts, least);
}

void order_by_operators_on_cpus(bool use) {
  operators_on_cpus.store(use);
}

Order order_by_operators(const at::Tensor& keys, const at::Tensor& counts, int64_t least) {
  const int64_t things = keys.numel(), num_keys = counts.numel(),
                places = things + num_keys * least;
  const at::Tensor none = keys < 0;
  const auto [sorted, from] =
      at::sort(keys.masked_fill(none, num_keys), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor real = key_counts(keys, num_keys);
  // Of its key's places the first as in the sorted list; behind all others without a key.
  const at::Tensor begin = at::cat({counts.cumsum(0) - counts, counts.new_full({1}, places)});
  const at::Tensor shift = begin - (real.cumsum(0) - real);
  const at::Tensor place =
      (at::arange(things, keys.options()) + shift.index_select(0, sorted)).clamp_max(places);
  Order order{at::empty_like(keys), at::full({places + 1}, -1, keys.options())};
  order.thing.scatter_(0, place, from);
  order.thing = order.thing.narrow(0, 0, places);
  order.place.scatter_(0, from, place);
  order.place.masked_fill_(none, -1);
  return order;
}

} // namespace pentatron::parallel
