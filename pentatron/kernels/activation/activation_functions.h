/// The activation functions and their slopes in exact arithmetic (libm), for the reference and for
/// CUDA.
#pragma once

#include <cmath>

#include "pentatron/kernels/activation/activation.h"
#include "pentatron/kernels/common/host_device.h"

namespace pentatron::kernels {

template <class A> struct Derived {
  A value;
  A slope;
};

template <class A> PT_HOST_DEVICE A sigmoid(A x) {
  return 1 / (1 + std::exp(-x));
}

/// x s(kx): its slope is s(kx) (1 + kx s(-kx)).
template <class A> PT_HOST_DEVICE Derived<A> sigmoid_gated(A x, A k) {
  const A s = sigmoid(k * x);
  return {x * s, s * (1 + k * x * sigmoid(-k * x))};
}

template <class A> PT_HOST_DEVICE Derived<A> evaluate(Activation kind, A x) {
  switch (kind) {
  case Activation::kGelu: {
    constexpr A kInvSqrt2 = 0.70710678118654752440, kInvSqrt2Pi = 0.39894228040143267794,
                kInvSqrt2Low = 0.70710678118654752440 - static_cast<double>(kInvSqrt2),
                kTwoInvSqrtPi = 1.12837916709551257390;
    // The rounding error of z would grow by 2 z^2 in erfc(z) (1e-5 at x = -9 in fp32), so it is
    // added to first order.
    const A z = -x * kInvSqrt2, error = std::fma(-x, kInvSqrt2, -z) - x * kInvSqrt2Low;
    const A slope = kTwoInvSqrtPi * std::exp(-z * z); // 0 at infinity, where the error is NaN
    const A phi = (std::erfc(z) - (slope > 0 ? error * slope : A{0})) / 2;
    return {x * phi, phi + x * std::exp(-x * x / 2) * kInvSqrt2Pi};
  }
  case Activation::kGeluTanh: { // (1 + tanh(u)) / 2 = sigmoid(2u), without cancellation for u << 0
    constexpr A k = 1.59576912160573071176, c = 0.044715; // k = 2 sqrt(2 / pi)
    const A u = k * (x + c * x * x * x);
    const A s = sigmoid(u);
    return {x * s, s + x * s * sigmoid(-u) * k * (1 + 3 * c * x * x)};
  }
  case Activation::kQuickGelu:
    return sigmoid_gated(x, static_cast<A>(1.702));
  case Activation::kSilu:
    return sigmoid_gated(x, A{1});
  case Activation::kRelu:
    return {x < 0 ? 0 : x, static_cast<A>(x <= 0 ? 0 : 1)};
  case Activation::kSquaredRelu: {
    const A positive = x < 0 ? 0 : x;
    return {positive * positive, 2 * positive};
  }
  }
  return {};
}

/// The gate and the up part of a gated activation.
template <class A> struct Gated {
  A value; ///< of the output
  A d_gate;
  A d_up; ///< derivatives of the output
};

/// NaN stays NaN.
template <class A>
PT_HOST_DEVICE Gated<A> evaluate_gated(Activation kind, const GateOptions& o, A gate, A up) {
  const A limit = static_cast<A>(o.limit);
  const Derived<A> act = evaluate<A>(kind, gate > limit ? limit : gate);
  const bool up_clamped = up > limit || up < -limit;
  const A factor = (up > limit ? limit : up < -limit ? -limit : up) + static_cast<A>(o.up_offset);
  return {act.value * factor, gate > limit ? 0 : act.slope * factor, up_clamped ? 0 : act.value};
}

} // namespace pentatron::kernels
