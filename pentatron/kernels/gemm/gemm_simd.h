/// The AVX-512 entries of the GEMM: blocking, packing and threads around the micro-kernel.
#pragma once

#include <string>

#include "pentatron/kernels/gemm/gemm.h"

namespace pentatron::kernels::gemm_detail {

std::string refuse_avx512(const GemmArgs& args, const Context& context); ///< fp32
void run_avx512(const GemmArgs& args, const Context& context);
std::string refuse_avx512_bf16(const GemmArgs& args,
                               const Context& context); ///< bf16, to fp32 or bf16
void run_avx512_bf16(const GemmArgs& args, const Context& context);

} // namespace pentatron::kernels::gemm_detail
