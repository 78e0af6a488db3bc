#include "pentatron/kernels/cross_entropy/cross_entropy_entries.h"

#include <cmath>
#include <limits>

#include "pentatron/kernels/common/parallel.h"
#include "pentatron/kernels/common/scalar.h"

// The definition of correct: everything in double, rounded once when written.
namespace pentatron::kernels::cross_entropy_reference {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct RowStats {
  double max = -kInfinity;
  double sum_exp = 0;
  double sum = 0;
};

template <class T> RowStats row_stats(const T* x, int64_t columns) {
  RowStats s;
  for (int64_t j = 0; j < columns; ++j) {
    const double v = to_double(x[j]);
    if (v > s.max) s.max = v;
    s.sum += v;
  }
  const double origin = s.max == -kInfinity ? 0 : s.max;
  for (int64_t j = 0; j < columns; ++j) s.sum_exp += std::exp(to_double(x[j]) - origin);
  return s;
}

struct Terms {
  double smoothing;
  double z_loss;
  double vocab;
};

double row_loss(double lse, double target_logit, double logit_sum, const Terms& t) {
  double loss = lse - (1 - t.smoothing) * target_logit + t.z_loss * lse * lse;
  if (t.smoothing > 0) loss -= t.smoothing / t.vocab * logit_sum;
  return loss;
}

template <class T, class Out>
void row_gradient(const T* x, Out* out, int64_t columns, int64_t padded, int64_t target, double max,
                  double sum_exp, double scale, const Terms& t) {
  const double lse = max + std::log(sum_exp);
  const double slope = scale * (1 + 2 * t.z_loss * lse) / sum_exp;
  const double uniform = t.smoothing > 0 ? scale * t.smoothing / t.vocab : 0;
  for (int64_t j = 0; j < columns; ++j) {
    double g = slope * std::exp(to_double(x[j]) - max) - uniform;
    if (j == target) g -= scale * (1 - t.smoothing);
    out[j] = from_double<Out>(g);
  }
  for (int64_t j = columns; j < padded; ++j) out[j] = from_double<Out>(0.0);
}

template <class Out> void zero_row(Out* out, int64_t padded) {
  for (int64_t j = 0; j < padded; ++j) out[j] = from_double<Out>(0.0);
}

} // namespace

void stats(const CrossEntropyStatsArgs& a, const Context&) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    using Acc = acc_t<T>;
    parallel_blocks(a.rows, 1, [&](int64_t r, int64_t, int64_t) {
      const T* x = static_cast<const T*>(a.logits) + r * a.row_stride;
      const RowStats s = row_stats(x, a.columns);
      static_cast<Acc*>(a.max)[r] = static_cast<Acc>(s.max);
      static_cast<Acc*>(a.sum_exp)[r] = static_cast<Acc>(s.sum_exp);
      const int64_t target = a.target[r] - a.vocab_offset;
      const bool here = a.target[r] >= 0 && target >= 0 && target < a.columns;
      static_cast<Acc*>(a.target_logit)[r] = here ? to_acc(x[target]) : Acc{0};
      if (a.logit_sum) static_cast<Acc*>(a.logit_sum)[r] = static_cast<Acc>(s.sum);
    });
  });
}

void rescale(const CrossEntropyRescaleArgs& a, const Context&) {
  visit_acc_dtype(a.dtype, [&]<class Acc>(Acc) {
    for (int64_t r = 0; r < a.rows; ++r) {
      const double local = static_cast<const Acc*>(a.local_max)[r];
      const double global = static_cast<const Acc*>(a.global_max)[r];
      Acc& sum = static_cast<Acc*>(a.sum_exp)[r];
      // Equal maxima need no factor; this also keeps -inf - -inf out of the exponential.
      if (local != global) sum = static_cast<Acc>(sum * std::exp(local - global));
    }
  });
}

void loss(const CrossEntropyLossArgs& a, const Context&) {
  visit_acc_dtype(a.dtype, [&]<class Acc>(Acc) {
    const Terms terms{a.label_smoothing, a.z_loss, static_cast<double>(a.global_vocab)};
    for (int64_t r = 0; r < a.rows; ++r) {
      const double max = static_cast<const Acc*>(a.max)[r];
      const double lse = max + std::log(static_cast<double>(static_cast<const Acc*>(a.sum_exp)[r]));
      const double sum = terms.smoothing > 0 ? static_cast<const Acc*>(a.logit_sum)[r] : 0;
      const double target_logit = static_cast<const Acc*>(a.target_logit)[r];
      static_cast<Acc*>(a.lse)[r] = static_cast<Acc>(lse);
      static_cast<Acc*>(a.loss)[r] =
          a.target[r] < 0 ? Acc{0} : static_cast<Acc>(row_loss(lse, target_logit, sum, terms));
    }
  });
}

void gradient(const CrossEntropyGradientArgs& a, const Context&) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    visit_dtype(a.out_dtype, [&]<class Out>(Out) {
      using Acc = acc_t<T>;
      const Terms terms{a.label_smoothing, a.z_loss, static_cast<double>(a.global_vocab)};
      parallel_blocks(a.rows, 1, [&](int64_t r, int64_t, int64_t) {
        const T* x = static_cast<const T*>(a.logits) + r * a.row_stride;
        Out* out = static_cast<Out*>(a.gradient) + r * a.out_row_stride;
        if (a.target[r] < 0) return zero_row(out, a.padded_columns);
        row_gradient(x, out, a.columns, a.padded_columns, a.target[r] - a.vocab_offset,
                     static_cast<const Acc*>(a.max)[r], static_cast<const Acc*>(a.sum_exp)[r],
                     static_cast<const Acc*>(a.row_scale)[r], terms);
      });
    });
  });
}

void fused(const CrossEntropyArgs& a, const Context&) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    visit_dtype(a.out_dtype, [&]<class Out>(Out) {
      using Acc = acc_t<T>;
      const Terms terms{a.label_smoothing, a.z_loss, static_cast<double>(a.columns)};
      parallel_blocks(a.rows, 1, [&](int64_t r, int64_t, int64_t) {
        const T* x = static_cast<const T*>(a.logits) + r * a.row_stride;
        Out* out = a.gradient ? static_cast<Out*>(a.gradient) + r * a.out_row_stride : nullptr;
        const int64_t target = a.target[r];
        const RowStats s = row_stats(x, a.columns);
        const double lse = s.max + std::log(s.sum_exp);
        const double target_logit = target >= 0 && target < a.columns ? to_double(x[target]) : 0;
        static_cast<Acc*>(a.lse)[r] = static_cast<Acc>(lse);
        static_cast<Acc*>(a.loss)[r] =
            target < 0 ? Acc{0} : static_cast<Acc>(row_loss(lse, target_logit, s.sum, terms));
        if (!out) return;
        if (target < 0) return zero_row(out, a.padded_columns);
        row_gradient(x, out, a.columns, a.padded_columns, target, s.max, s.sum_exp,
                     static_cast<const Acc*>(a.row_scale)[r], terms);
      });
    });
  });
}

} // namespace pentatron::kernels::cross_entropy_reference
