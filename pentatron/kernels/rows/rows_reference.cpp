#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/rows/rows_entries.h"

namespace pentatron::kernels {

namespace {

template <class T> void apply(const SumRows& a) {
#pragma omp parallel for schedule(static) if (a.rows * a.cols > 1 << 12)
  for (int64_t r = 0; r < a.rows; ++r) {
    T* const y = static_cast<T*>(a.y) + r * a.cols;
    for (int64_t i = 0; i < a.cols; ++i) {
      acc_t<T> sum = 0;
      bool first = true;
      for (int64_t j = 0; j < a.k; ++j) {
        const int64_t place = a.places[r * a.k + j];
        if (place < 0) continue;
        const acc_t<T> value = to_acc(static_cast<const T*>(a.x)[place * a.cols + i]);
        sum = first ? value : sum + value; // a copy keeps the sign of zero
        first = false;
      }
      y[i] = from_acc<T>(sum);
    }
  }
}

} // namespace

void SumRowsReference::run(const SumRows& args, const Context&) {
  visit_dtype(args.dtype, [&]<class T>(T) { apply<T>(args); });
}

} // namespace pentatron::kernels
