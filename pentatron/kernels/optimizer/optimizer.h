/// Optimizer steps over flat buffers. Elements are independent: a buffer may be cut anywhere, and
/// over any number of threads, with the same result bit for bit.
#pragma once

#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

/// What a step has decided on the device, without the host's knowing; in device memory on CUDA.
struct UpdateControl {
  double grad_scale = 1;
  double apply = 1; ///< 0: nothing is updated
  double steps = 1; ///< updates with this one
};

/// AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101), in the order of operations of
/// torch.optim.AdamW:
///   g = grad_scale * grad
///   p *= 1 - lr wd;  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g g
///   p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
/// Step scalars are computed in double and rounded once to the dtype.
struct AdamWArgs {
  DType dtype = DType::kFloat32; ///< of param, grad, exp_avg, exp_avg_sq: kFloat32 or kFloat64
  int64_t n = 0;
  void* param = nullptr; ///< in, out
  const void* grad = nullptr;
  void* exp_avg = nullptr;    ///< in, out
  void* exp_avg_sq = nullptr; ///< in, out
  /// out: param rounded to copy_dtype, ties of bf16 away from zero (as TransformerEngine's
  /// remainders: then 16 bits more are all of param); may be null
  void* param_copy = nullptr;
  DType copy_dtype = DType::kBFloat16;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double grad_scale = 1;                  ///< clip coefficient / loss scale
  int64_t step = 1;                       ///< from 1
  const UpdateControl* control = nullptr; ///< if given, in place of grad_scale and step
  int64_t first_step = 0;                 ///< of control's steps, those before the first of these
};
void adamw(const AdamWArgs& args, const Context& context = {});
std::span<const Entry<AdamWArgs>> adamw_entries();

/// Stochastic gradient descent, in the order of operations of torch.optim.SGD (dampening 0):
///   g = grad_scale * grad + wd p;  b = momentum b + g;  p -= lr (nesterov ? g + momentum b : b)
/// `momentum_buffer` begins as zeros; it is null exactly if momentum is 0, and then p -= lr g.
struct SgdArgs {
  DType dtype = DType::kFloat32; ///< kFloat32 or kFloat64
  int64_t n = 0;
  void* param = nullptr; ///< in, out
  const void* grad = nullptr;
  void* momentum_buffer = nullptr; ///< in, out
  void* param_copy = nullptr;      ///< out, as in AdamWArgs; may be null
  DType copy_dtype = DType::kBFloat16;
  double lr = 1e-3;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  double grad_scale = 1;
  const UpdateControl* control = nullptr; ///< if given, in place of grad_scale
};
void sgd(const SgdArgs& args, const Context& context = {});
std::span<const Entry<SgdArgs>> sgd_entries();

/// Lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2):
///   g = grad_scale * grad;  c = beta1 m + (1 - beta1) g
///   p = p (1 - lr wd) - lr sign(c);  m = beta2 m + (1 - beta2) g
/// sign(0) is 0, and that of NaN is NaN. Step scalars are computed in double and rounded once.
struct LionArgs {
  DType dtype = DType::kFloat32; ///< of param, grad, exp_avg: kFloat32 or kFloat64
  int64_t n = 0;
  void* param = nullptr; ///< in, out
  const void* grad = nullptr;
  void* exp_avg = nullptr;    ///< in, out
  void* param_copy = nullptr; ///< out, as in AdamWArgs; may be null
  DType copy_dtype = DType::kBFloat16;
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  double grad_scale = 1;
  const UpdateControl* control = nullptr; ///< if given, in place of grad_scale
};
void lion(const LionArgs& args, const Context& context = {});
std::span<const Entry<LionArgs>> lion_entries();

} // namespace pentatron::kernels
