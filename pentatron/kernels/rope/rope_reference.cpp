#include <algorithm>

#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/rope/rope_entries.h"

namespace pentatron::kernels {

namespace {

template <class T> void rotate(const Rope& a) {
  using A = acc_t<T>;
  const int64_t half = a.rotary_dim / 2;
  const int64_t step = a.interleaved ? 2 : 1;
  const int64_t partner = a.interleaved ? 1 : half;
#pragma omp parallel for schedule(static) if (a.tokens * a.heads * a.head_size > 1 << 14)
  for (int64_t t = 0; t < a.tokens; ++t) {
    const A* cos = static_cast<const A*>(a.cos) + a.positions[t] * half;
    const A* sin = static_cast<const A*>(a.sin) + a.positions[t] * half;
    for (int64_t h = 0; h < a.heads; ++h) {
      const T* x = static_cast<const T*>(a.x) + t * a.x_token_stride + h * a.x_head_stride;
      T* y = static_cast<T*>(a.y) + t * a.y_token_stride + h * a.y_head_stride;
      for (int64_t i = 0; i < half; ++i) {
        const A first = to_acc(x[i * step]), second = to_acc(x[i * step + partner]);
        const A s = a.transpose ? -sin[i] : sin[i];
        y[i * step] = from_acc<T>(first * cos[i] - second * s);
        y[i * step + partner] = from_acc<T>(second * cos[i] + first * s);
      }
      if (x != y) std::copy(x + a.rotary_dim, x + a.head_size, y + a.rotary_dim);
    }
  }
}

} // namespace

void RopeReference::run(const Rope& args, const Context&) {
  visit_dtype(args.dtype, [&]<class T>(T) { rotate<T>(args); });
}

} // namespace pentatron::kernels
