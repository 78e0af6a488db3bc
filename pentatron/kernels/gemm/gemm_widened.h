/// fp16 products on a processor with AVX-512, and bf16 products without its bf16 instructions:
/// panels of A and B become fp32, which the AVX-512 entry multiplies.
#pragma once

#include <string>

#include "pentatron/kernels/gemm/gemm.h"

namespace pentatron::kernels::gemm_detail {

/// With any fp32 entry, whose order of sums it keeps.
void multiply_widened(const GemmArgs& args, void (*multiply)(const GemmArgs&, const Context&));

std::string refuse_widened(const GemmArgs& args, const Context& context);
void run_widened(const GemmArgs& args, const Context& context);

} // namespace pentatron::kernels::gemm_detail
