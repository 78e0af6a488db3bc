/// Things in order of their keys: choices by expert.
///
/// Shapes: C = things, K = keys. A thing with key -1 has no place.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace pentatron::parallel {

/// How many things have each key, at least `least`. keys [C] int64 -> [K] int64, on their device
at::Tensor counts_of_keys(const at::Tensor& keys, int64_t num_keys, int64_t least);

/// Things lie by key, and of one key in their own order. A key with fewer than `least` has empty
/// places behind its things.
struct Order {
  at::Tensor place; ///< [C] int64: of each thing; -1: none
  at::Tensor thing; ///< [places] int64: in each place; -1: none. May be longer, up to C + K least;
                    ///< the rest is -1
};

/// `counts`: counts_of_keys() of the same keys. On the keys' device; a GPU is not waited for.
Order order_by_key(const at::Tensor& keys, const at::Tensor& counts, int64_t least);

/// From now on order_by_key() takes the operators of GPUs on CPUs too. For tests and all threads.
void order_by_operators_on_cpus(bool use);
/// The same by LibTorch's operators, as a GPU runs it.
Order order_by_operators(const at::Tensor& keys, const at::Tensor& counts, int64_t least);

} // namespace pentatron::parallel
