#include "pentatron/layers/core_attention.h"

#include <ATen/ATen.h>

#include "pentatron/layers/core_attention_detail.h"
#include "pentatron/nn/record.h"

namespace pentatron::layers {

namespace {

struct Entry {
  const char* name;
  bool (*accepts)(const at::Tensor& q, const CoreAttentionOptions& options,
                  const nn::ForwardContext& ctx);
  detail::AttentionResult (*forward)(const detail::AttentionInputs&);
  detail::AttentionGradients (*backward)(const detail::AttentionInputs&,
                                         const detail::AttentionResult&, const at::Tensor&);
};

bool flash_accepts(const at::Tensor& q, const CoreAttentionOptions& options,
                   const nn::ForwardContext& ctx) {
  const bool type_ok =
      q.is_cpu() || q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  return type_ok && options.cap == 0 && options.softmax == SoftmaxKind::kVanilla &&
         (options.window == 0 || options.window >= ctx.layout->sequence) &&
         (options.dropout == 0 || !ctx.training);
}

bool kernel_accepts(const at::Tensor& q, const CoreAttentionOptions& options,
                    const nn::ForwardContext& ctx) {
  return options.cap == 0 && (options.dropout == 0 || !ctx.training) &&
         detail::kernel_supports(q, options);
}

constexpr Entry kEntries[] = {
    {"kernel", kernel_accepts, detail::kernel_forward, detail::kernel_backward},
    {"flash", flash_accepts, detail::flash_forward, detail::flash_backward},
    {"blocked",
     [](const at::Tensor&, const CoreAttentionOptions&, const nn::ForwardContext&) { return true; },
     detail::blocked_forward, detail::blocked_backward},
};

const Entry& choose(const at::Tensor& q, const CoreAttentionOptions& options,
                    const nn::ForwardContext& ctx) {
  const Entry* entry = kEntries;
  while (!entry->accepts(q, options, ctx)) ++entry;
  return *entry;
}

} // namespace

const char* core_attention_entry(const at::Tensor& q_tnd, const CoreAttentionOptions& options,
                                 const nn::ForwardContext& ctx) {
  return choose(q_tnd, options, ctx).name;
}

at::Tensor core_attention(const at::Tensor& q_tnd, const at::Tensor& k_tgd, const at::Tensor& v_tgd,
                          const CoreAttentionOptions& options, const nn::ForwardContext& ctx) {
  const Entry& entry = choose(q_tnd, options, ctx);
  detail::AttentionInputs in{.q = q_tnd.detach(),
                             .k = k_tgd.detach(),
                             .v = v_tgd.detach(),
                             .documents = ctx.layout->document_starts,
                             .batch = ctx.layout->batch,
                             .sequence = ctx.layout->sequence,
                             .options = options,
                             .row_ids = {},
                             .seed = ctx.seed};
  if (ctx.training && options.dropout > 0) in.row_ids = ctx.layout->row_ids;
  ctx.use(options.sinks);
  detail::AttentionResult result;
  at::Tensor out;
  {
    const nn::NoAutograd guard;
    result = entry.forward(in);
    out = result.out.view({result.out.size(0), -1});
  }
  nn::record("core_attention", {q_tnd, k_tgd, v_tgd}, {out},
             [in = std::move(in), result, &entry](std::vector<at::Tensor>&& grads) {
               const nn::NoAutograd guard;
               const at::Tensor dout = grads[0].contiguous().view(result.out.sizes());
               const detail::AttentionGradients g = entry.backward(in, result, dout);
               if (in.options.sinks != nullptr && in.options.sinks->trainable)
                 in.options.sinks->accumulate(g.dsinks);
               return std::vector<at::Tensor>{g.dq, g.dk, g.dv};
             });
  return out;
}

} // namespace pentatron::layers
