// Attention through pentatron's fused kernel: causal with windows, sinks, groups and documents.
#include <ATen/ATen.h>

#include "pentatron/kernels/attention/attention.h"
#include "pentatron/layers/core_attention_detail.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::layers::detail {

namespace {

kernels::HeadsView heads(const at::Tensor& x) {
  return {x.data_ptr(), x.stride(0), x.stride(1)};
}

/// `sinks` [n, 1] must outlive the result.
kernels::AttentionShape shape_of(const AttentionInputs& in, const at::Tensor& sinks) {
  return {.dtype = nn::kernel_dtype(in.q.scalar_type()),
          .heads = in.q.size(1),
          .kv_heads = in.k.size(1),
          .head_size = in.q.size(2),
          .documents = in.documents,
          .scale = in.options.scale,
          .window = in.options.window,
          .sinks = nn::data_or_null(sinks)};
}

} // namespace

at::Tensor sink_logits(const at::Tensor& q, const CoreAttentionOptions& options) {
  const auto acc = q.options().dtype(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  if (options.softmax == SoftmaxKind::kOffByOne) return at::zeros({q.size(1), 1}, acc);
  if (options.softmax == SoftmaxKind::kLearnable)
    return options.sinks->value().to(acc.dtype()).view({-1, 1});
  return {};
}

bool kernel_supports(const at::Tensor& q, const CoreAttentionOptions& options) {
  return q.is_cpu() && kernels::attention_supported({.dtype = nn::kernel_dtype(q.scalar_type()),
                                                     .heads = q.size(1),
                                                     .kv_heads = q.size(1),
                                                     .head_size = q.size(2),
                                                     .documents = {},
                                                     .scale = options.scale,
                                                     .window = options.window});
}

AttentionResult kernel_forward(const AttentionInputs& in) {
  const at::Tensor sinks = sink_logits(in.q, in.options);
  AttentionResult result{at::empty(in.q.sizes(), in.q.options()),
                         at::empty({in.q.size(1), in.q.size(0)}, in.q.options().dtype(at::kFloat))};
  kernels::attention_forward({.shape = shape_of(in, sinks),
                              .q = heads(in.q),
                              .k = heads(in.k),
                              .v = heads(in.v),
                              .out = heads(result.out),
                              .lse = result.lse.data_ptr()});
  return result;
}

AttentionGradients kernel_backward(const AttentionInputs& in, const AttentionResult& saved,
                                   const at::Tensor& dout) {
  const at::Tensor sinks = sink_logits(in.q, in.options);
  AttentionGradients grads{at::empty(in.q.sizes(), in.q.options()),
                           at::empty(in.k.sizes(), in.k.options()),
                           at::empty(in.v.sizes(), in.v.options()),
                           {}};
  if (sinks.defined()) grads.dsinks = at::empty({in.q.size(1)}, sinks.options());
  kernels::attention_backward({.shape = shape_of(in, sinks),
                               .q = heads(in.q),
                               .k = heads(in.k),
                               .v = heads(in.v),
                               .out = heads(saved.out),
                               .dout = heads(dout),
                               .lse = saved.lse.data_ptr(),
                               .dq = heads(grads.dq),
                               .dk = heads(grads.dk),
                               .dv = heads(grads.dv),
                               .dsinks = nn::data_or_null(grads.dsinks)});
  return grads;
}

} // namespace pentatron::layers::detail
