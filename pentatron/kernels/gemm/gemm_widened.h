/// bf16 products on a processor without bf16 instructions: panels of A and B become fp32, and the
/// fp32 product of the list runs.
#pragma once

#include <string>

#include "pentatron/kernels/gemm/gemm.h"

namespace pentatron::kernels::gemm_detail {

std::string refuse_widened(const GemmArgs& args, const Context& context);
void run_widened(const GemmArgs& args, const Context& context);

} // namespace pentatron::kernels::gemm_detail
