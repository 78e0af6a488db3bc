#include <algorithm>

#include "pentatron/kernels/activation/activation_entries.h"
#include "pentatron/kernels/activation/activation_functions.h"
#include "pentatron/kernels/common/scalar.h"

namespace pentatron::kernels {

namespace {

/// Of row r; 1: none.
template <class A, class Args> A row_scale(const Args& a, int64_t r) {
  return a.row_scale == nullptr ? A{1} : static_cast<const A*>(a.row_scale)[r];
}

template <class T> void forward(const ActivationForward& a) {
  using A = acc_t<T>;
  const int64_t f = a.cols;
  const auto bias = widen<A>(a.bias, a.bias_dtype, a.gated ? 2 * f : f, 0);
#pragma omp parallel for schedule(static) if (a.rows * f > 1 << 12)
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    T* y = static_cast<T*>(a.y) + r * a.y_stride;
    const A scale = row_scale<A>(a, r);
    for (int64_t i = 0; i < f; ++i) {
      const A in = to_acc(x[i]) + bias[i];
      y[i] = from_acc<T>(
          scale * (a.gated
                       ? evaluate_gated<A>(a.kind, a.gate, in, to_acc(x[f + i]) + bias[f + i]).value
                       : evaluate<A>(a.kind, in).value));
    }
  }
}

/// Row by row: drow_scale.
template <class T> void backward_scale(const ActivationBackward& a) {
  using A = acc_t<T>;
  const int64_t f = a.cols;
  const auto bias = widen<A>(a.bias, a.bias_dtype, a.gated ? 2 * f : f, 0);
#pragma omp parallel for schedule(static) if (a.rows * f > 1 << 12)
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* dy = static_cast<const T*>(a.dy) + r * a.dy_stride;
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    A sum = 0;
    for (int64_t i = 0; i < f; ++i) {
      const A in = to_acc(x[i]) + bias[i];
      sum += to_acc(dy[i]) *
             (a.gated ? evaluate_gated<A>(a.kind, a.gate, in, to_acc(x[f + i]) + bias[f + i]).value
                      : evaluate<A>(a.kind, in).value);
    }
    static_cast<A*>(a.drow_scale)[r] = sum;
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
        const A in = to_acc(x[i]) + bias[i], dy_i = to_acc(dy[i]) * row_scale<A>(a, r);
        A d;
        if (a.gated) {
          const Gated<A> act =
              evaluate_gated<A>(a.kind, a.gate, in, to_acc(x[f + i]) + bias[f + i]);
          const A d_up = dy_i * act.d_up;
          d = dy_i * act.d_gate;
          dx[f + i] = from_acc<T>(d_up);
          dbias[1][i - begin] += d_up;
        } else {
          d = dy_i * evaluate<A>(a.kind, in).slope;
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

void ActivationReference::run(const ActivationForward& args, const Context&) {
  visit_dtype(args.dtype, [&]<class T>(T) { forward<T>(args); });
}

void ActivationReference::run(const ActivationBackward& args, const Context&) {
  visit_dtype(args.dtype, [&]<class T>(T) {
    if (args.drow_scale != nullptr) backward_scale<T>(args); // before dx, which may overwrite x
    backward<T>(args);
  });
}

} // namespace pentatron::kernels
