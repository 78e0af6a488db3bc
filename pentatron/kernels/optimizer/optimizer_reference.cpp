#include "pentatron/kernels/optimizer/optimizer_entries.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "pentatron/base/philox.h"
#include "pentatron/kernels/common/parallel.h"
#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/optimizer/narrow_codes.h"

namespace pentatron::kernels::optimizer_reference {

namespace {

/// Ties of bf16 are rounded away from zero.
template <class Copy, class T> Copy to_copy(T x) {
  if constexpr (std::is_same_v<Copy, bf16>) return from_acc<Copy>(ties_away(static_cast<float>(x)));
  return from_double<Copy>(x);
}

/// p_i = rule(i, p_i, grad_scale * grad_i), and the copy of it. make(scalars) gives the rule.
template <template <class> class Scalars, class Args, class F>
void update(const Args& a, F&& make) {
  visit_acc_dtype(a.dtype, [&]<class T>(T) {
    visit_dtype(a.copy_dtype, [&]<class Copy>(Copy) {
      const Scalars<T> s(a);
      const auto rule = make(s);
      T* p = static_cast<T*>(a.param);
      const T* grad = static_cast<const T*>(a.grad);
      Copy* copy = static_cast<Copy*>(a.param_copy);
      parallel_blocks(a.n, kStepBlock, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t i = begin; i < end; ++i) {
          p[i] = rule(i, p[i], s.grad_scale * grad[i]);
          if (copy) copy[i] = to_copy<Copy>(p[i]);
        }
      });
    });
  });
}

} // namespace

void adamw(const AdamWArgs& given, const Context&) {
  AdamWArgs a = given;
  if (!take_control(a)) return;
  update<AdamWScalars>(a, [&]<class T>(const AdamWScalars<T>& s) {
    return [&s, m = static_cast<T*>(a.exp_avg), v = static_cast<T*>(a.exp_avg_sq)](int64_t i, T p,
                                                                                   T g) {
      m[i] = m[i] + s.weight1 * (g - m[i]);
      v[i] = v[i] * s.beta2 + s.weight2 * g * g;
      const T denominator = std::sqrt(v[i]) / s.correction2 + s.eps;
      return p * s.decay - s.step_size * m[i] / denominator;
    };
  });
}

void sgd(const SgdArgs& given, const Context&) {
  SgdArgs a = given;
  if (!take_control(a)) return;
  update<SgdScalars>(a, [&]<class T>(const SgdScalars<T>& s) {
    return [&s, nesterov = a.nesterov, b = static_cast<T*>(a.momentum_buffer)](int64_t i, T p,
                                                                               T scaled) {
      T g = scaled + s.decay * p;
      if (b) {
        b[i] = s.momentum * b[i] + g;
        g = nesterov ? g + s.momentum * b[i] : b[i];
      }
      return p - s.lr * g;
    };
  });
}

void lion(const LionArgs& given, const Context&) {
  LionArgs a = given;
  if (!take_control(a)) return;
  update<LionScalars>(a, [&]<class T>(const LionScalars<T>& s) {
    return [&s, m = static_cast<T*>(a.exp_avg)](int64_t i, T p, T g) {
      const T c = s.beta1 * m[i] + s.weight1 * g;
      const T sign = c > 0 ? T(1) : c < 0 ? T(-1) : c;
      m[i] = s.beta2 * m[i] + s.weight2 * g;
      return p * s.decay - s.lr * sign;
    };
  });
}

void sum_of_squares(const SumOfSquaresArgs& a, const Context&) {
  std::vector<double> partial(static_cast<size_t>((a.n + kSumBlock - 1) / kSumBlock));
  visit_dtype(a.dtype, [&]<class T>(T) {
    const T* x = static_cast<const T*>(a.x);
    parallel_blocks(a.n, kSumBlock, [&](int64_t begin, int64_t end, int64_t block) {
      double lanes[kSumLanes] = {};
      for (int64_t i = begin; i < end; ++i) {
        const auto value = to_double(x[i]);
        double& lane = lanes[(i - begin) % kSumLanes];
        lane = std::fma(value, value, lane);
      }
      for (int width = kSumLanes / 2; width > 0; width /= 2) {
        for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
      }
      partial[static_cast<size_t>(block)] = lanes[0];
    });
  });
  double sum = 0;
  for (const double p : partial) sum += p;
  *a.result = sum;
}

void find_nonfinite(const NonfiniteArgs& a, const Context&) {
  const int64_t blocks = (a.n + kStepBlock - 1) / kStepBlock;
  std::vector<int64_t> counts(static_cast<size_t>(blocks));
  std::vector<int64_t> firsts(static_cast<size_t>(blocks), -1);
  visit_dtype(a.dtype, [&]<class T>(T) {
    const T* x = static_cast<const T*>(a.x);
    parallel_blocks(a.n, kStepBlock, [&](int64_t begin, int64_t end, int64_t block) {
      for (int64_t i = begin; i < end; ++i) {
        if (std::isfinite(to_double(x[i]))) continue;
        if (counts[static_cast<size_t>(block)]++ == 0) firsts[static_cast<size_t>(block)] = i;
      }
    });
  });
  *a.count = 0;
  *a.first_index = -1;
  for (size_t b = 0; b < counts.size(); ++b) {
    *a.count += counts[b];
    if (*a.first_index < 0) *a.first_index = firsts[b];
  }
}

void scale(const ScaleArgs& a, const Context&) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    using Acc = acc_t<T>;
    const auto factor = static_cast<Acc>(a.factor);
    T* x = static_cast<T*>(a.x);
    parallel_blocks(a.n, kStepBlock, [&](int64_t begin, int64_t end, int64_t) {
      for (int64_t i = begin; i < end; ++i) x[i] = from_acc<T>(to_acc(x[i]) * factor);
    });
  });
}

void cast(const CastArgs& a, const Context&) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    visit_dtype(a.out_dtype, [&]<class Out>(Out) {
      const T* x = static_cast<const T*>(a.x);
      Out* out = static_cast<Out*>(a.out);
      parallel_blocks(a.n, kStepBlock, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t i = begin; i < end; ++i) out[i] = from_double<Out>(to_double(x[i]));
      });
    });
  });
}

void zero(const ZeroArgs& a, const Context&) {
  parallel_blocks(a.bytes, 1 << 20, [&](int64_t begin, int64_t end, int64_t) {
    std::memset(static_cast<char*>(a.x) + begin, 0, static_cast<size_t>(end - begin));
  });
}

void store_narrow(const StoreNarrowArgs& a, const Context&) {
  const NarrowFormat format = format_of(a.type);
  const auto half_of_element = [&](uint64_t g) -> uint32_t {
    if (!a.by_chance) return 0;
    const uint64_t counter = counter_of(g);
    const PhiloxBlock words =
        philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                    static_cast<uint32_t>(a.step), static_cast<uint32_t>(a.step >> 32)},
                   a.key);
    return half_of(g, words.data());
  };
  visit_acc_dtype(a.dtype, [&]<class T>(T) {
    parallel_rows(a.rows, a.cols, kStepBlock, [&](int64_t row, int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const int64_t i = row * a.stride + c;
        const uint32_t code =
            stored_code(a, format, static_cast<const T*>(a.value)[i],
                        half_of_element(static_cast<uint64_t>(a.first + row * a.first_step + c)));
        if (format.width == 8)
          static_cast<uint8_t*>(a.stored)[i] = static_cast<uint8_t>(code);
        else
          static_cast<uint16_t*>(a.stored)[i] = static_cast<uint16_t>(code);
      }
    });
  });
}

void load_narrow(const LoadNarrowArgs& a, const Context&) {
  const NarrowFormat format = format_of(a.type);
  visit_acc_dtype(a.dtype, [&]<class T>(T) {
    parallel_blocks(a.n, kStepBlock, [&](int64_t begin, int64_t end, int64_t) {
      for (int64_t i = begin; i < end; ++i) {
        const uint32_t code = format.width == 8 ? static_cast<const uint8_t*>(a.stored)[i]
                                                : static_cast<const uint16_t*>(a.stored)[i];
        static_cast<T*>(a.value)[i] = loaded_number<T>(a, format, code);
      }
    });
  });
}

} // namespace pentatron::kernels::optimizer_reference
