// Included once per instruction set by activation_simd.cpp.

#include "pentatron/kernels/common/math_body.h"

struct Derived {
  VF value;
  VF slope;
};

/// x s(kx): its slope is s(kx) (1 + kx s(-kx)).
inline Derived sigmoid_gated(VF x, float k) {
  const Tails s = sigmoid(x * k);
  return {x * s.at, s.at * fma(x * k, s.opposite, broadcast(1.0f))};
}

template <Activation kKind> inline Derived evaluate(VF x) {
  if constexpr (kKind == Activation::kGelu) {
    const Normal n = normal(x);
    return {x * n.cumulative, fma(x, n.density, n.cumulative)};
  } else if constexpr (kKind == Activation::kGeluTanh) {
    constexpr float k = 1.59576912f,
                    c = 0.044715f; // k = 2 sqrt(2/pi); (1 + tanh(u)) / 2 = sigmoid(2u)
    const VF square = x * x;
    const Tails s = sigmoid(x * k * fma(square, broadcast(c), broadcast(1.0f)));
    return {x * s.at, s.at * fma(x * k * fma(square, broadcast(3 * c), broadcast(1.0f)), s.opposite,
                                 broadcast(1.0f))};
  } else if constexpr (kKind == Activation::kQuickGelu) {
    return sigmoid_gated(x, 1.702f);
  } else if constexpr (kKind == Activation::kSilu) {
    return sigmoid_gated(x, 1.0f);
  } else if constexpr (kKind == Activation::kRelu) {
    return {x < 0 ? VF{} : x, x <= 0 ? VF{} : broadcast(1.0f)};
  } else {
    const VF positive = x < 0 ? VF{} : x;
    return {positive * positive, positive * 2.0f};
  }
}

/// What a gated activation does to its input: nothing in the plain form; limits cost two
/// instructions more, so models without them do not pay.
enum class Form { kPlain, kGated, kLimited };

/// A gate and an up part within their limits, and where they were so already.
struct Limited {
  Limited(VF gate, VF up, const GateOptions& o)
      : limit(broadcast(static_cast<float>(o.limit))), gate_in(gate), up_in(up),
        gate(gate > limit ? limit : gate), factor((up > limit    ? limit
                                                   : up < -limit ? -limit
                                                                 : up) +
                                                  broadcast(static_cast<float>(o.up_offset))) {}
  VF d_gate(VF d) const { return gate_in > limit ? VF{} : d; }
  VF d_up(VF d) const { return up_in > limit ? VF{} : up_in < -limit ? VF{} : d; }

  VF limit, gate_in, up_in;
  VF gate, factor;
};

/// 1: none.
inline VF scale_of_row(const void* row_scale, int64_t r) {
  return broadcast(row_scale == nullptr ? 1.0f : static_cast<const float*>(row_scale)[r]);
}

template <Activation kKind, Form kForm, class T> void forward(const ActivationForward& a) {
  const int64_t f = a.cols;
  const auto bias = widen<float>(a.bias, a.bias_dtype,
                                 a.bias == nullptr ? 0
                                 : a.gated         ? 2 * f
                                                   : f,
                                 0);
  const float* b = a.bias == nullptr ? nullptr : bias.data();
#pragma omp parallel for schedule(static) if (a.rows * f > 1 << 12)
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    T* y = static_cast<T*>(a.y) + r * a.y_stride;
    const VF scale = scale_of_row(a.row_scale, r);
    for_vectors(f, [&](int64_t i, auto lanes) {
      const auto input = [&](int64_t at) {
        const VF v = load(x + at, lanes);
        return b == nullptr ? v : v + load(b + at, lanes);
      };
      if constexpr (kForm == Form::kLimited) {
        const Limited in(input(i), input(f + i), a.gate);
        store(y + i, evaluate<kKind>(in.gate).value * in.factor * scale, lanes);
      } else {
        VF value = evaluate<kKind>(input(i)).value;
        if constexpr (kForm == Form::kGated) value *= input(f + i);
        store(y + i, value * scale, lanes);
      }
    });
  }
}

/// One row: dx, its sums in dbias (may be null), and drow_scale.
template <Activation kKind, Form kForm, class T>
void backward_row(const ActivationBackward& a, const float* b, float* dbias, int64_t r) {
  const int64_t f = a.cols;
  const T* dy = static_cast<const T*>(a.dy) + r * a.dy_stride;
  const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
  T* dx = static_cast<T*>(a.dx) + r * a.dx_stride;
  const VF scale = scale_of_row(a.row_scale, r);
  VF dscale{};
  for_vectors(f, [&](int64_t i, auto lanes) {
    const auto input = [&](int64_t at) {
      const VF v = load(x + at, lanes);
      return b == nullptr ? v : v + load(b + at, lanes);
    };
    const auto output = [&](int64_t at, VF d) {
      store(dx + at, d, lanes);
      if (dbias != nullptr) store(dbias + at, load(dbias + at, lanes) + d, lanes);
    };
    const VF given = load(dy + i, lanes), d = given * scale;
    if constexpr (kForm == Form::kLimited) {
      const Limited in(input(i), input(f + i), a.gate);
      const Derived act = evaluate<kKind>(in.gate);
      dscale += given * act.value * in.factor;
      output(i, in.d_gate(d * act.slope * in.factor));
      output(f + i, in.d_up(d * act.value));
      return;
    }
    const Derived act = evaluate<kKind>(input(i));
    if constexpr (kForm == Form::kGated) {
      const VF up = input(f + i);
      dscale += given * act.value * up;
      output(i, d * act.slope * up);
      output(f + i, d * act.value);
    } else {
      dscale += given * act.value;
      output(i, d * act.slope);
    }
  });
  if (a.drow_scale != nullptr) static_cast<float*>(a.drow_scale)[r] = sum(dscale);
}

template <Activation kKind, Form kForm, class T>
void backward(const ActivationBackward& a, const Context& context) {
  const int64_t width = a.gated ? 2 * a.cols : a.cols;
  const auto bias = widen<float>(a.bias, a.bias_dtype, a.bias == nullptr ? 0 : width, 0);
  const float* b = a.bias == nullptr ? nullptr : bias.data();
  const RowChunks chunks(a.rows);
  std::span<std::byte> workspace = context.workspace;
  ColumnSums dbias(a.rows, a.dbias == nullptr ? 0 : width, workspace);
#pragma omp parallel for schedule(static) if (a.rows * a.cols > 1 << 12)
  for (int64_t k = 0; k < chunks.count; ++k) {
    float* dbias_k = a.dbias == nullptr ? nullptr : dbias.begin_chunk(k);
    const int64_t end = std::min(a.rows, (k + 1) * chunks.size);
    for (int64_t r = k * chunks.size; r < end; ++r) backward_row<kKind, kForm, T>(a, b, dbias_k, r);
  }
  if (a.dbias != nullptr) dbias.add_to(static_cast<float*>(a.dbias));
}

/// f.operator()<kind, form, element type>().
template <class Args, class F> void visit(const Args& a, F&& f) {
  const auto with_type = [&]<Activation kKind, Form kForm>() {
    visit_float_dtype(a.dtype, [&]<class T>(T) { f.template operator()<kKind, kForm, T>(); });
  };
  const auto with_kind = [&]<Activation kKind>() {
    if (!a.gated)
      with_type.template operator()<kKind, Form::kPlain>();
    else if (a.gate == GateOptions{})
      with_type.template operator()<kKind, Form::kGated>();
    else
      with_type.template operator()<kKind, Form::kLimited>();
  };
  switch (a.kind) {
  case Activation::kGelu:
    return with_kind.template operator()<Activation::kGelu>();
  case Activation::kGeluTanh:
    return with_kind.template operator()<Activation::kGeluTanh>();
  case Activation::kQuickGelu:
    return with_kind.template operator()<Activation::kQuickGelu>();
  case Activation::kRelu:
    return with_kind.template operator()<Activation::kRelu>();
  case Activation::kSquaredRelu:
    return with_kind.template operator()<Activation::kSquaredRelu>();
  case Activation::kSilu:
    return with_kind.template operator()<Activation::kSilu>();
  }
}

void run(const ActivationForward& a, const Context&) {
  visit(a, [&]<Activation kKind, Form kForm, class T>() { forward<kKind, kForm, T>(a); });
}
void run(const ActivationBackward& a, const Context& context) {
  visit(a, [&]<Activation kKind, Form kForm, class T>() { backward<kKind, kForm, T>(a, context); });
}
