/// The CPU entries of attention other than the reference: fp32; bf16 and fp16 as fp32; bf16 with
/// vdpbf16ps or with AMX.
#pragma once

#include <algorithm>
#include <string>

#include "pentatron/kernels/attention/attention.h"
#include "pentatron/kernels/attention/attention_panels.h"
#include "pentatron/kernels/dropout/dropout.h"

namespace pentatron::kernels::attention_detail {

std::string refuse_avx2(const AttentionShape& shape, const Context& context);
void forward_avx2(const AttentionForward& args, const Context& context);
void backward_avx2(const AttentionBackward& args, const Context& context);

std::string refuse_avx512(const AttentionShape& shape, const Context& context);
void forward_avx512(const AttentionForward& args, const Context& context);
void backward_avx512(const AttentionBackward& args, const Context& context);

std::string refuse_amx(const AttentionShape& shape, const Context& context); ///< takes bf16 only
void forward_amx(const AttentionForward& args, const Context& context);
void backward_amx(const AttentionBackward& args, const Context& context);

/// The reasons to refuse that these entries share.
inline std::string refuse_common(const AttentionShape& s, const Context& context) {
  if (context.device != Device::kCpu) return "needs CPU memory";
  if (s.dtype == DType::kFloat64) return "does not take float64";
  if (std::max(s.head_size, s.value_size) > kMaxHeadSize) return "head size is above 512";
  if (s.cap != 0 && s.bias != nullptr) return "does not take a cap with a bias";
  if (dropout_threshold(s.dropout.p) >> 32 != 0) return "does not drop all, p = 1";
  return {};
}

} // namespace pentatron::kernels::attention_detail
