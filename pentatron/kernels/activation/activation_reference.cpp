#include <cmath>
#include <numbers>

#include "pentatron/kernels/activation/activation_entries.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/scalar.h"

namespace pentatron::kernels {

namespace {

template <class A> struct Derived {
  A value;
  A slope;
};

template <class A> A sigmoid(A x) {
  return 1 / (1 + std::exp(-x));
}

/// x s(kx): its slope is s(kx) (1 + kx (1 - s(kx))). silu has k = 1.
template <class A> Derived<A> sigmoid_gated(A x, A k) {
  const A s = sigmoid(k * x);
  return {x * s, s * (1 + k * x * sigmoid(-k * x))};
}

template <class A> Derived<A> evaluate(Activation kind, A x) {
  switch (kind) {
  case Activation::kGelu: {
    const A phi = std::erfc(-x * static_cast<A>(std::numbers::sqrt2 / 2)) / 2;
    const A density =
        std::exp(-x * x / 2) * static_cast<A>(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
    return {x * phi, phi + x * density};
  }
  case Activation::kGeluTanh: { // (1 + tanh(u)) / 2 = sigmoid(2u), without cancellation for u << 0
    const A k = static_cast<A>(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    const A c = static_cast<A>(0.044715);
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

template <class T> void forward(const ActivationForward& a) {
  using A = acc_t<T>;
  const int64_t f = a.cols;
  const auto bias = widen<A>(a.bias, a.bias_dtype, a.gated ? 2 * f : f, 0);
#pragma omp parallel for schedule(static) if (a.rows * f > 1 << 12)
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    T* y = static_cast<T*>(a.y) + r * a.y_stride;
    for (int64_t i = 0; i < f; ++i) {
      const A value = evaluate<A>(a.kind, to_acc(x[i]) + bias[i]).value;
      y[i] = from_acc<T>(a.gated ? value * (to_acc(x[f + i]) + bias[f + i]) : value);
    }
  }
}

/// A block of columns per task, so that every sum of dbias runs over the rows in order.
template <class T> void backward(const ActivationBackward& a) {
  using A = acc_t<T>;
  constexpr int64_t kBlock = 64;
  const int64_t f = a.cols;
  const auto bias = widen<A>(a.bias, a.bias_dtype, a.gated ? 2 * f : f, 0);
#pragma omp parallel for schedule(static) if (a.rows * f > 1 << 12)
  for (int64_t begin = 0; begin < f; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, f);
    A dbias[2][kBlock] = {};
    for (int64_t r = 0; r < a.rows; ++r) {
      const T* dy = static_cast<const T*>(a.dy) + r * a.dy_stride;
      const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
      T* dx = static_cast<T*>(a.dx) + r * a.dx_stride;
      for (int64_t i = begin; i < end; ++i) {
        const Derived<A> act = evaluate<A>(a.kind, to_acc(x[i]) + bias[i]);
        A d = to_acc(dy[i]) * act.slope;
        if (a.gated) {
          const A d_up = to_acc(dy[i]) * act.value;
          d *= to_acc(x[f + i]) + bias[f + i];
          dx[f + i] = from_acc<T>(d_up);
          dbias[1][i - begin] += d_up;
        }
        dx[i] = from_acc<T>(d);
        dbias[0][i - begin] += d;
      }
    }
    if (a.dbias == nullptr) continue;
    A* out = static_cast<A*>(a.dbias);
    for (int64_t i = begin; i < end; ++i) {
      out[i] += dbias[0][i - begin];
      if (a.gated) out[f + i] += dbias[1][i - begin];
    }
  }
}

} // namespace

std::string ActivationReference::refuse(const ActivationForward&, const Context& context) {
  return refuse_unless_cpu(context);
}
std::string ActivationReference::refuse(const ActivationBackward&, const Context& context) {
  return refuse_unless_cpu(context);
}

void ActivationReference::run(const ActivationForward& args, const Context&) {
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) { forward<T>(args); });
}

void ActivationReference::run(const ActivationBackward& args, const Context&) {
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) { backward<T>(args); });
}

} // namespace pentatron::kernels
