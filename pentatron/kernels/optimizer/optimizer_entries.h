/// The implementations behind optimizer.h and buffer.h, one namespace each; only the lists use
/// them.
#pragma once

#include <cmath>

#include "pentatron/kernels/optimizer/buffer.h"
#include "pentatron/kernels/optimizer/optimizer.h"

namespace pentatron::kernels {

/// The scalars of one AdamW step in double.
struct AdamWScalars {
  double decay;
  double one_minus_beta1;
  double beta2;
  double one_minus_beta2;
  double sqrt_correction2;
  double step_size;
  double eps;
  double grad_scale;

  explicit AdamWScalars(const AdamWArgs& a)
      : decay(1 - a.lr * a.weight_decay), one_minus_beta1(1 - a.beta1), beta2(a.beta2),
        one_minus_beta2(1 - a.beta2),
        sqrt_correction2(std::sqrt(1 - std::pow(a.beta2, static_cast<double>(a.step)))),
        step_size(a.lr / (1 - std::pow(a.beta1, static_cast<double>(a.step)))), eps(a.eps),
        grad_scale(a.grad_scale) {}
};

/// The scalars of one Lion step in double.
struct LionScalars {
  double decay, beta1, one_minus_beta1, beta2, one_minus_beta2, lr, grad_scale;

  explicit LionScalars(const LionArgs& a)
      : decay(1 - a.lr * a.weight_decay), beta1(a.beta1), one_minus_beta1(1 - a.beta1),
        beta2(a.beta2), one_minus_beta2(1 - a.beta2), lr(a.lr), grad_scale(a.grad_scale) {}
};

/// Elements that one thread takes at a time.
constexpr int64_t kStepBlock = 16384;
/// Lanes of sum_of_squares.
constexpr int kSumLanes = 32;

#define PENTATRON_OPTIMIZER_FUNCTIONS                                                              \
  void adamw(const AdamWArgs& a, const Context& context);                                          \
  void sgd(const SgdArgs& a, const Context& context);                                              \
  void lion(const LionArgs& a, const Context& context);                                            \
  void sum_of_squares(const SumOfSquaresArgs& a, const Context& context);                          \
  void find_nonfinite(const NonfiniteArgs& a, const Context& context);                             \
  void scale(const ScaleArgs& a, const Context& context);                                          \
  void cast(const CastArgs& a, const Context& context);                                            \
  void zero(const ZeroArgs& a, const Context& context);

namespace optimizer_reference {
PENTATRON_OPTIMIZER_FUNCTIONS
}
namespace optimizer_avx2 {
PENTATRON_OPTIMIZER_FUNCTIONS
}
namespace optimizer_avx512 {
PENTATRON_OPTIMIZER_FUNCTIONS
}
namespace optimizer_cuda {
PENTATRON_OPTIMIZER_FUNCTIONS
}

#undef PENTATRON_OPTIMIZER_FUNCTIONS

} // namespace pentatron::kernels
