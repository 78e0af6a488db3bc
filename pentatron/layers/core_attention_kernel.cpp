// Attention through pentatron's fused kernel: everything but a cap with a bias.
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
          .value_size = in.v.size(2),
          .queries = in.q.size(0),
          .pairs = in.pairs,
          .mask = in.options.mask,
          .scale = in.options.scale,
          .cap = in.options.cap,
          .window = in.options.window,
          .sinks = nn::data_or_null(sinks),
          .bias = nn::data_or_null(in.bias),
          .span = in.span(),
          .dropout = in.row_ids.defined() ? dropout_of(in) : kernels::AttentionDropout{}};
}

} // namespace

at::Tensor sink_logits(const at::Tensor& q, const CoreAttentionOptions& options) {
  const auto acc = q.options().dtype(nn::acc_dtype(q.scalar_type()));
  if (options.softmax == SoftmaxKind::kOffByOne) return at::zeros({q.size(1), 1}, acc);
  if (options.softmax == SoftmaxKind::kLearnable)
    return options.sinks->value().to(acc.dtype()).view({-1, 1});
  return {};
}

bool kernel_accepts(const AttentionInputs& in) {
  return in.q.is_cpu() && kernels::attention_supported(shape_of(in, {}));
}

bool kernel_knows_logits(const AttentionInputs& in) {
  return in.options.softmax == SoftmaxKind::kVanilla && in.options.cap == 0 && !in.bias.defined() &&
         in.real_pairs.empty();
}

AttentionResult kernel_forward(const AttentionInputs& in) {
  const at::Tensor sinks = sink_logits(in.q, in.options);
  AttentionResult result = make_result(in);
  kernels::attention_forward(
      {.shape = shape_of(in, sinks),
       .q = heads(in.q),
       .k = heads(in.k),
       .v = heads(in.v),
       .out = heads(result.out),
       .lse = result.lse.data_ptr(),
       .max_logits = kernel_knows_logits(in) ? nn::data_or_null(in.max_logits) : nullptr});
  return result;
}

AttentionGradients kernel_backward(const AttentionInputs& in, const AttentionResult& saved,
                                   const OutputGradients& d) {
  const at::Tensor sinks = sink_logits(in.q, in.options);
  AttentionGradients grads = make_gradients(in);
  kernels::attention_backward({.shape = shape_of(in, sinks),
                               .q = heads(in.q),
                               .k = heads(in.k),
                               .v = heads(in.v),
                               .out = heads(saved.out),
                               .dout = heads(d.out),
                               .lse = saved.lse.data_ptr(),
                               .dlse = nn::data_or_null(d.lse),
                               .dq = heads(grads.dq),
                               .dk = heads(grads.dk),
                               .dv = heads(grads.dv),
                               .dsinks = nn::data_or_null(grads.dsinks),
                               .dbias = nn::data_or_null(grads.dbias)});
  return grads;
}

} // namespace pentatron::layers::detail
