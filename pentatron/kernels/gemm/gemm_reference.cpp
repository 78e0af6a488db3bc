#include "pentatron/kernels/gemm/gemm.h"

#include "pentatron/kernels/common/scalar.h"

namespace pentatron::kernels {
namespace {

// Sums in Acc: the accumulate type of the arguments.
template <class Acc> void run(const GemmArgs& g) {
  for (int64_t item = 0; item < g.batch; ++item) {
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        Acc sum = 0;
        for (int64_t p = 0; p < g.k; ++p) {
          const int64_t ia = item * g.stride_a + (g.transpose_a ? p * g.lda + i : i * g.lda + p);
          const int64_t ib = item * g.stride_b + (g.transpose_b ? j * g.ldb + p : p * g.ldb + j);
          sum += static_cast<Acc>(load_as_double(g.a, g.in_dtype, ia)) *
                 static_cast<Acc>(load_as_double(g.b, g.in_dtype, ib));
        }
        const int64_t ic = item * g.stride_c + i * g.ldc + j;
        if (g.accumulate) sum += static_cast<Acc>(load_as_double(g.c, g.out_dtype, ic));
        if (g.bias != nullptr) sum += static_cast<Acc>(load_as_double(g.bias, g.bias_dtype, j));
        store_from_double(g.c, g.out_dtype, ic, sum);
      }
    }
  }
}

} // namespace

void gemm_reference(const GemmArgs& args, const Context&) {
  visit_acc_dtype(args.in_dtype, [&]<class Acc>(Acc) { run<Acc>(args); });
}

} // namespace pentatron::kernels
