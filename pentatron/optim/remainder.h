/// Stores fp32 master weights as 16-bit remainders in addition to the bf16 values: the values hold
/// the upper half, rounded, and the remainders hold the lower half.
#pragma once

#include <ATen/core/Tensor.h>

namespace pentatron::optim {

/// The fp32 numbers that bf16 `values` and int16 `remainder` stand for.
at::Tensor joined(const at::Tensor& values, const at::Tensor& remainder);

/// Sets both from fp32 numbers; joined() gives the same bits back. A number halfway between two
/// of bf16 is rounded away from zero, so that 16 bits are enough; others to the nearest.
void split_master(const at::Tensor& master, const at::Tensor& values, const at::Tensor& remainder);

} // namespace pentatron::optim
