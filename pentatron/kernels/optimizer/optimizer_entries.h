/// The implementations behind optimizer.h, buffer.h and narrow.h, one namespace each; only the
/// lists use them.
#pragma once

#include <cmath>

#include "pentatron/kernels/common/host_device.h"
#include "pentatron/kernels/optimizer/buffer.h"
#include "pentatron/kernels/optimizer/narrow.h"
#include "pentatron/kernels/optimizer/optimizer.h"

namespace pentatron::kernels {

/// Replaces what `control` says, of a step that is about to be made: false if it updates nothing.
template <class Args> PT_HOST_DEVICE bool take_control(Args& a) {
  if (a.control == nullptr) return true;
  a.grad_scale = a.control->grad_scale;
  if constexpr (requires { a.first_step; })
    a.step = static_cast<int64_t>(a.control->steps) - a.first_step;
  return a.control->apply != 0;
}

/// The scalars of one AdamW step, computed in double.
template <class T> struct AdamWScalars {
  T decay, weight1, beta2, weight2, correction2, step_size, eps, grad_scale;

  PT_HOST_DEVICE explicit AdamWScalars(const AdamWArgs& a)
      : decay(static_cast<T>(1 - a.lr * a.weight_decay)), weight1(static_cast<T>(1 - a.beta1)),
        beta2(static_cast<T>(a.beta2)), weight2(static_cast<T>(1 - a.beta2)),
        correction2(static_cast<T>(std::sqrt(1 - std::pow(a.beta2, static_cast<double>(a.step))))),
        step_size(static_cast<T>(a.lr / (1 - std::pow(a.beta1, static_cast<double>(a.step))))),
        eps(static_cast<T>(a.eps)), grad_scale(static_cast<T>(a.grad_scale)) {}
};

/// Those of SGD.
template <class T> struct SgdScalars {
  T lr, momentum, decay, grad_scale;

  PT_HOST_DEVICE explicit SgdScalars(const SgdArgs& a)
      : lr(static_cast<T>(a.lr)), momentum(static_cast<T>(a.momentum)),
        decay(static_cast<T>(a.weight_decay)), grad_scale(static_cast<T>(a.grad_scale)) {}
};

/// Those of Lion.
template <class T> struct LionScalars {
  T decay, beta1, weight1, beta2, weight2, lr, grad_scale;

  PT_HOST_DEVICE explicit LionScalars(const LionArgs& a)
      : decay(static_cast<T>(1 - a.lr * a.weight_decay)), beta1(static_cast<T>(a.beta1)),
        weight1(static_cast<T>(1 - a.beta1)), beta2(static_cast<T>(a.beta2)),
        weight2(static_cast<T>(1 - a.beta2)), lr(static_cast<T>(a.lr)),
        grad_scale(static_cast<T>(a.grad_scale)) {}
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
  void zero(const ZeroArgs& a, const Context& context);                                            \
  void store_narrow(const StoreNarrowArgs& a, const Context& context);                             \
  void load_narrow(const LoadNarrowArgs& a, const Context& context);

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
