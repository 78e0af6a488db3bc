#include "pentatron/kernels/quantize/hadamard.h"

#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/quantize/hadamard_entries.h"

namespace pentatron::kernels {

namespace {

constexpr Entry<Hadamard> kEntries[] = {
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda<Hadamard>, HadamardCuda::run},
#endif
#if defined(__x86_64__)
    {"avx512", refuse_unless_avx512<Hadamard>, HadamardAvx512::run},
    {"avx2", refuse_unless_avx2<Hadamard>, HadamardAvx2::run},
#endif
    {"reference", refuse_unless_cpu<Hadamard>, HadamardReference::run},
};

} // namespace

std::span<const Entry<Hadamard>> hadamard_entries() {
  return kEntries;
}

void hadamard(const Hadamard& args, const Context& context) {
  run_entry(op_class(Op::kHadamard, args.dtype), hadamard_entries(), args, context);
}

} // namespace pentatron::kernels
