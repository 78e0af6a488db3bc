#include "pentatron/kernels/rows/rows.h"

#include "pentatron/base/error.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/rows/rows_entries.h"

namespace pentatron::kernels {

namespace {

constexpr Entry<SumRows> kEntries[] = {
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, SumRowsCuda::run},
#endif
#if defined(__x86_64__)
    {"avx512", refuse_float64_or_no_avx512<SumRows>, SumRowsAvx512::run},
    {"avx2", refuse_float64_or_no_avx2<SumRows>, SumRowsAvx2::run},
#endif
    {"reference", refuse_unless_cpu, SumRowsReference::run},
};

} // namespace

std::span<const Entry<SumRows>> sum_rows_entries() {
  return kEntries;
}

void sum_rows(const SumRows& args, const Context& context) {
  if (args.rows < 0 || args.cols < 0 || args.k < 0)
    raise<ShapeError>("sum_rows over rows={}, k={}, cols={}: a size is negative", args.rows, args.k,
                      args.cols);
  if (args.rows == 0 || args.cols == 0) return;
  run_entry(op_class(Op::kSumRows, args.dtype), sum_rows_entries(), args, context);
}

} // namespace pentatron::kernels
