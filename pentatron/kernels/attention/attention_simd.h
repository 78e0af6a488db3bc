/// The CPU entries of attention beside the reference: fp32, and bf16 with vdpbf16ps or with AMX.
#pragma once

#include <string>

#include "pentatron/kernels/attention/attention.h"

namespace pentatron::kernels::attention_detail {

std::string refuse(const AttentionShape& shape, const Context& context);
void forward(const AttentionForward& args, const Context& context);
void backward(const AttentionBackward& args, const Context& context);

std::string refuse_amx(const AttentionShape& shape, const Context& context); ///< takes bf16 only
void forward_amx(const AttentionForward& args, const Context& context);
void backward_amx(const AttentionBackward& args, const Context& context);

} // namespace pentatron::kernels::attention_detail
