#include "pentatron/kernels/optimizer/optimizer_entries.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "pentatron/kernels/common/parallel.h"
#include "pentatron/kernels/common/scalar.h"

namespace pentatron::kernels::optimizer_reference {

void adamw(const AdamWArgs& a, const Context&) {
  visit_acc_dtype(a.dtype, [&]<class T>(T) {
    visit_dtype(a.copy_dtype, [&]<class Copy>(Copy) {
      const AdamWScalars s(a);
      const auto decay = static_cast<T>(s.decay);
      const auto weight1 = static_cast<T>(s.one_minus_beta1);
      const auto beta2 = static_cast<T>(s.beta2);
      const auto weight2 = static_cast<T>(s.one_minus_beta2);
      const auto correction2 = static_cast<T>(s.sqrt_correction2);
      const auto step_size = static_cast<T>(s.step_size);
      const auto eps = static_cast<T>(s.eps);
      const auto grad_scale = static_cast<T>(s.grad_scale);
      T* p = static_cast<T*>(a.param);
      T* m = static_cast<T*>(a.exp_avg);
      T* v = static_cast<T*>(a.exp_avg_sq);
      const T* grad = static_cast<const T*>(a.grad);
      Copy* copy = static_cast<Copy*>(a.param_copy);
      parallel_blocks(a.n, kStepBlock, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t i = begin; i < end; ++i) {
          const T g = grad_scale * grad[i];
          m[i] = m[i] + weight1 * (g - m[i]);
          v[i] = v[i] * beta2 + weight2 * g * g;
          const T denominator = std::sqrt(v[i]) / correction2 + eps;
          p[i] = p[i] * decay - step_size * m[i] / denominator;
          if (copy) copy[i] = from_double<Copy>(p[i]);
        }
      });
    });
  });
}

void sgd(const SgdArgs& a, const Context&) {
  visit_acc_dtype(a.dtype, [&]<class T>(T) {
    visit_dtype(a.copy_dtype, [&]<class Copy>(Copy) {
      const auto lr = static_cast<T>(a.lr);
      const auto momentum = static_cast<T>(a.momentum);
      const auto decay = static_cast<T>(a.weight_decay);
      const auto grad_scale = static_cast<T>(a.grad_scale);
      T* p = static_cast<T*>(a.param);
      T* b = static_cast<T*>(a.momentum_buffer);
      const T* grad = static_cast<const T*>(a.grad);
      Copy* copy = static_cast<Copy*>(a.param_copy);
      parallel_blocks(a.n, kStepBlock, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t i = begin; i < end; ++i) {
          T g = grad_scale * grad[i] + decay * p[i];
          if (b) {
            b[i] = momentum * b[i] + g;
            g = a.nesterov ? g + momentum * b[i] : b[i];
          }
          p[i] = p[i] - lr * g;
          if (copy) copy[i] = from_double<Copy>(p[i]);
        }
      });
    });
  });
}

void lion(const LionArgs& a, const Context&) {
  visit_acc_dtype(a.dtype, [&]<class T>(T) {
    visit_dtype(a.copy_dtype, [&]<class Copy>(Copy) {
      const LionScalars s(a);
      const auto decay = static_cast<T>(s.decay), lr = static_cast<T>(s.lr);
      const auto beta1 = static_cast<T>(s.beta1), weight1 = static_cast<T>(s.one_minus_beta1);
      const auto beta2 = static_cast<T>(s.beta2), weight2 = static_cast<T>(s.one_minus_beta2);
      const auto grad_scale = static_cast<T>(s.grad_scale);
      T* p = static_cast<T*>(a.param);
      T* m = static_cast<T*>(a.exp_avg);
      const T* grad = static_cast<const T*>(a.grad);
      Copy* copy = static_cast<Copy*>(a.param_copy);
      parallel_blocks(a.n, kStepBlock, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t i = begin; i < end; ++i) {
          const T g = grad_scale * grad[i];
          const T c = beta1 * m[i] + weight1 * g;
          const T sign = c > 0 ? T(1) : c < 0 ? T(-1) : c;
          m[i] = beta2 * m[i] + weight2 * g;
          p[i] = p[i] * decay - lr * sign;
          if (copy) copy[i] = from_double<Copy>(p[i]);
        }
      });
    });
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

} // namespace pentatron::kernels::optimizer_reference
