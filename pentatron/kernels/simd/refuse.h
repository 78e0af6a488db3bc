/// The reasons of kernels that depend on where they run and on the processor only.
#pragma once

#include <string>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels::simd {

template <class Args> std::string refuse_unless_cpu(const Args&, const Context& context) {
  return context.device == Device::kCpu ? "" : "runs on the CPU only";
}
template <class Args> std::string refuse_unless_avx2(const Args& args, const Context& context) {
  if (!cpu_features().avx2) return "the processor has no AVX2";
  return refuse_unless_cpu(args, context);
}
template <class Args> std::string refuse_unless_avx512(const Args& args, const Context& context) {
  if (!cpu_features().avx512) return "the processor has no AVX-512 (F, BW, DQ, VL)";
  return refuse_unless_cpu(args, context);
}
template <class Args> std::string refuse_unless_cuda(const Args&, const Context& context) {
  return context.device == Device::kCuda ? "" : "runs on CUDA only";
}

} // namespace pentatron::kernels::simd
