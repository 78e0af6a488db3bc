#include "pentatron/base/philox.h"
#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/dropout/dropout_entries.h"

namespace pentatron::kernels {

bool dropout_keeps(const Dropout& a, int64_t row, int64_t col) {
  const uint64_t id =
      a.row_ids ? a.row_ids[row] : a.row_begin + static_cast<uint64_t>(row) * a.row_step;
  const auto feature = static_cast<uint64_t>(a.feature_offset + col);
  const auto block = static_cast<uint32_t>(feature / 64 * 16 + feature % 16);
  const PhiloxBlock words = philox4x32(
      {static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32), block, a.site}, a.key);
  return words[feature % 64 / 16] >= dropout_threshold(a.p);
}

namespace {

template <class T> void apply(const Dropout& a) {
  using A = acc_t<T>;
  const A scale = a.p < 1 ? static_cast<A>(1 / (1 - a.p)) : 0;
#pragma omp parallel for schedule(static) if (a.rows * a.cols > 1 << 12)
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    const T* residual =
        a.residual ? static_cast<const T*>(a.residual) + r * a.residual_stride : nullptr;
    T* y = static_cast<T*>(a.y) + r * a.y_stride;
    for (int64_t i = 0; i < a.cols; ++i) {
      A value = dropout_keeps(a, r, i) ? to_acc(x[i]) * scale : 0;
      if (residual != nullptr) value += to_acc(residual[i]);
      y[i] = from_acc<T>(value);
    }
  }
}

} // namespace

void DropoutReference::run(const Dropout& args, const Context&) {
  visit_dtype(args.dtype, [&]<class T>(T) { apply<T>(args); });
}

} // namespace pentatron::kernels
