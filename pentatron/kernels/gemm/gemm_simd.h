/// The CPU entries of the GEMM beside the reference.
#pragma once

#include <string>

#include "pentatron/kernels/gemm/gemm.h"

namespace pentatron::kernels::gemm_detail {

// Blocking, packing and threads around a micro-kernel.
std::string refuse_avx2(const GemmArgs& args,
                        const Context& context); ///< fp32; bf16 and fp16, to themselves or fp32
void run_avx2(const GemmArgs& args, const Context& context);
std::string refuse_avx512(const GemmArgs& args, const Context& context); ///< fp32
void run_avx512(const GemmArgs& args, const Context& context);
std::string refuse_avx512_bf16(const GemmArgs& args,
                               const Context& context); ///< bf16, to fp32 or bf16
void run_avx512_bf16(const GemmArgs& args, const Context& context);
std::string refuse_amx_bf16(const GemmArgs& args, const Context& context); ///< the same types
void run_amx_bf16(const GemmArgs& args, const Context& context);

// Intel MKL inside libtorch_cpu.
std::string refuse_mkl(const GemmArgs& args, const Context& context); ///< fp32
void run_mkl(const GemmArgs& args, const Context& context);
std::string refuse_mkl_bf16(const GemmArgs& args, const Context& context); ///< bf16, to both
void run_mkl_bf16(const GemmArgs& args, const Context& context);

/// The reasons to refuse that entries on the CPU share.
inline std::string refuse_common(const GemmArgs& g, const Context& context) {
  if (context.device != Device::kCpu) return "needs CPU memory";
  if (g.bias != nullptr && g.bias_dtype == DType::kFloat64)
    return "bias must be float32, bfloat16 or float16";
  return {};
}

/// The same for entries that take bf16.
inline std::string refuse_bf16(const GemmArgs& g, const Context& context) {
  if (g.in_dtype != DType::kBFloat16) return "supports bfloat16 inputs only";
  if (g.out_dtype != DType::kFloat32 && g.out_dtype != DType::kBFloat16)
    return "gives float32 or bfloat16 only";
  return refuse_common(g, context);
}

/// The same for entries that take fp16.
inline std::string refuse_fp16(const GemmArgs& g, const Context& context) {
  if (g.in_dtype != DType::kFloat16) return "supports float16 inputs only";
  if (g.out_dtype != DType::kFloat32 && g.out_dtype != DType::kFloat16)
    return "gives float32 or float16 only";
  return refuse_common(g, context);
}

} // namespace pentatron::kernels::gemm_detail
