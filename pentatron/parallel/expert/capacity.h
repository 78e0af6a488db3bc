/// A limit to the tokens of an expert: those beyond it are not sent.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace pentatron::parallel {

struct CapacityOptions {
  double factor = 0;        ///< 0: no limit
  bool by_position = false; ///< the last tokens are dropped; else those of the smallest probs
  bool pad = false;         ///< every expert gets as many rows as its capacity
};

/// Tokens that an expert takes of a rank: ceil(T k / E factor), at most T.
int64_t expert_capacity(int64_t tokens, int64_t top_k, int64_t experts, double factor);

/// [T, k] bool: the choices that their expert has room for. Of equal probs the first tokens stay;
/// padding gets what room real tokens leave.
///   experts [T, k] int64, probs [T, k], real [T] bool or undefined: all; on any device
at::Tensor kept_choices(const at::Tensor& experts, const at::Tensor& probs, const at::Tensor& real,
                        int64_t num_experts, const CapacityOptions& options);

} // namespace pentatron::parallel
