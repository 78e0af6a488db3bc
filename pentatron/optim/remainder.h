/// Rounding of fp32 master weights to bf16 values, and their storage as 16-bit remainders in
/// addition to these: the values hold the upper half, rounded, and the remainders hold the lower
/// half.
#pragma once

#include <ATen/core/Tensor.h>

namespace pentatron::optim {

/// The fp32 numbers that bf16 `values` and int16 `remainder` stand for.
at::Tensor joined(const at::Tensor& values, const at::Tensor& remainder);

/// Sets values to master weights in their type. A number halfway between two of bf16 is rounded
/// away from zero, as by split_master() and by the kernels of optimizers; others to the nearest.
void round_master(const at::Tensor& values, const at::Tensor& master);

/// Sets both from fp32 numbers; joined() gives the same bits back, for which ties must go away from
/// zero: to even, two numbers would have the same 32 bits.
void split_master(const at::Tensor& master, const at::Tensor& values, const at::Tensor& remainder);

} // namespace pentatron::optim
