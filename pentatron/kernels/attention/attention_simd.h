/// The AVX-512 entries of attention: fp32, and bf16 with vdpbf16ps.
#pragma once

#include <string>

#include "pentatron/kernels/attention/attention.h"

namespace pentatron::kernels::attention_detail {

std::string refuse(const AttentionShape& shape, const Context& context);
void forward(const AttentionForward& args, const Context& context);
void backward(const AttentionBackward& args, const Context& context);

} // namespace pentatron::kernels::attention_detail
