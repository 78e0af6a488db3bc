/// Operators of LibTorch on the device without a GPU (device.h): shapes, and what they move.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace pentatron::roofline {

/// Any operator: gives results of the right shape, without content, and records the launch.
///
/// Bytes: each tensor that is read or written, once; dimensions of stride 0 count as one element.
/// Attention is counted with the buffers that LibTorch's FlashAttention-2 makes inside: dq in fp32
/// for each group of keys that runs at once (deterministic), dk and dv of every query head.
/// FLOPs: 2 m n k of products; of attention 4 (forward) or 10 (backward, which computes the scores
/// again) times the head size for each visible pair of a head.
void run_recorded(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

at::Tensor as_strided(const at::Tensor& x, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset);
at::Tensor view(const at::Tensor& x, c10::IntArrayRef size);
at::Tensor reshape_alias(const at::Tensor& x, c10::IntArrayRef size, c10::IntArrayRef stride);
at::Tensor& set_storage(at::Tensor& x, c10::Storage source, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride);

/// What the host reads: 1, or 0 of integers.
at::Scalar read_scalar(const at::Tensor& x);
/// As if every element counted.
at::Tensor nonzero(const at::Tensor& x);

} // namespace pentatron::roofline
