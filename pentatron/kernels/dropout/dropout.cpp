#include "pentatron/kernels/dropout/dropout.h"

#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/dropout/dropout_entries.h"

namespace pentatron::kernels {

namespace {

/// The vectors compare words with a threshold of 32 bits.
template <auto refuse> std::string refuse_certain(const Dropout& args, const Context& context) {
  return dropout_threshold(args.p) >> 32 != 0 ? "does not drop all, p = 1" : refuse(args, context);
}

constexpr Entry<Dropout> kEntries[] = {
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, DropoutCuda::run},
#endif
#if defined(__x86_64__)
    {"avx512", refuse_certain<refuse_float64_or_no_avx512<Dropout>>, DropoutAvx512::run},
    {"avx2", refuse_certain<refuse_float64_or_no_avx2<Dropout>>, DropoutAvx2::run},
#endif
    {"reference", refuse_unless_cpu, DropoutReference::run},
};

} // namespace

std::span<const Entry<Dropout>> dropout_entries() {
  return kEntries;
}

uint64_t dropout_threshold(double p) {
  return static_cast<uint64_t>(std::llround(p * 0x1p32));
}

void dropout(const Dropout& args, const Context& context) {
  if (args.rows < 0 || args.cols < 0 || args.feature_offset < 0)
    raise<ShapeError>("dropout over rows={}, cols={}, feature_offset={}: a size is negative",
                      args.rows, args.cols, args.feature_offset);
  if (!(args.p >= 0.0 && args.p <= 1.0))
    raise<ConfigError>("dropout: p={} is not a probability", args.p);
  if (args.rows == 0 || args.cols == 0) return;
  Dropout full = args;
  if (full.x_stride == 0) full.x_stride = args.cols;
  if (full.residual_stride == 0) full.residual_stride = args.cols;
  if (full.y_stride == 0) full.y_stride = args.cols;
  run_entry(op_class(Op::kDropout, full.dtype), dropout_entries(), full, context);
}

} // namespace pentatron::kernels
