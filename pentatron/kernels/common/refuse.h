/// The reasons to refuse that depend on where a kernel runs, on the processor and on the element
/// type; entries of an ordered list use them as they are.
#pragma once

#include <string>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

template <class Args> std::string refuse_unless_cpu(const Args&, const Context& context) {
  return context.device == Device::kCpu ? "" : "runs on the CPU only";
}
template <class Args> std::string refuse_unless_cuda(const Args&, const Context& context) {
  return context.device == Device::kCuda ? "" : "runs on CUDA only";
}
template <class Args> std::string refuse_unless_avx2(const Args& args, const Context& context) {
  if (!cpu_features().avx2) return "the processor has no AVX2";
  return refuse_unless_cpu(args, context);
}
template <class Args> std::string refuse_unless_avx512(const Args& args, const Context& context) {
  if (!cpu_features().avx512) return "the processor has no AVX-512 (F, BW, DQ, VL)";
  return refuse_unless_cpu(args, context);
}

/// For entries without doubles.
template <class Args>
std::string refuse_float64_or_no_avx2(const Args& args, const Context& context) {
  return args.dtype == DType::kFloat64 ? "does not support float64"
                                       : refuse_unless_avx2(args, context);
}
template <class Args>
std::string refuse_float64_or_no_avx512(const Args& args, const Context& context) {
  return args.dtype == DType::kFloat64 ? "does not support float64"
                                       : refuse_unless_avx512(args, context);
}

} // namespace pentatron::kernels
