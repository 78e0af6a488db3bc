// Attention with everything, in blocks of queries: windows, sinks, dropout, packed documents, any
// type and device. Scores of one block exist at a time; backward computes them again from the saved
// log-sum-exp.
#include <ATen/ATen.h>

#include "pentatron/base/philox.h"
#include "pentatron/kernels/dropout/dropout.h"
#include "pentatron/layers/core_attention_detail.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::layers::detail {

namespace {

constexpr int64_t kQueryBlock = 128;
/// Address of a key in a row of dropout numbers: its head, and its position in the sample.
constexpr int64_t kHeadStride = int64_t{1} << 24;

struct Block {
  int64_t q_begin = 0, q_end = 0; // tokens
  int64_t k_begin = 0, k_end = 0;
};

std::vector<Block> blocks(const AttentionInputs& in) {
  std::vector<Block> result;
  for (size_t d = 0; d + 1 < in.documents.size(); ++d) {
    const int64_t begin = in.documents[d], end = in.documents[d + 1];
    for (int64_t q = begin; q < end; q += kQueryBlock) {
      const int64_t first =
          in.options.window > 0 ? std::max(begin, q - in.options.window + 1) : begin;
      const int64_t last = std::min(end, q + kQueryBlock);
      result.push_back({q, last, first, last});
    }
  }
  return result;
}

at::ScalarType acc_of(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// [tokens, heads, d] -> [g, heads / g * tokens, d] in the accumulate type.
at::Tensor grouped(const at::Tensor& x, int64_t begin, int64_t end, int64_t groups) {
  const int64_t tokens = end - begin, heads = x.size(1), d = x.size(2);
  return x.narrow(0, begin, tokens)
      .to(acc_of(x))
      .permute({1, 0, 2})
      .reshape({groups, heads / groups * tokens, d});
}

/// The inverse: [g, heads / g * tokens, d] -> [tokens, heads, d].
at::Tensor ungrouped(const at::Tensor& x, int64_t heads, int64_t tokens) {
  return x.reshape({heads, tokens, x.size(2)}).permute({1, 0, 2});
}

/// True where a key must not be seen: [q, k].
at::Tensor hidden_mask(const AttentionInputs& in, const Block& block) {
  const auto options = at::TensorOptions(at::kLong).device(in.q.device());
  const at::Tensor i = at::arange(block.q_begin, block.q_end, options).unsqueeze(1);
  const at::Tensor j = at::arange(block.k_begin, block.k_end, options).unsqueeze(0);
  at::Tensor hidden = j > i;
  if (in.options.window > 0) hidden = hidden.logical_or(i - j >= in.options.window);
  return hidden;
}

/// Scores [n, q, k] of a block, hidden ones -inf.
at::Tensor block_scores(const AttentionInputs& in, const Block& block, const at::Tensor& q,
                        const at::Tensor& k) {
  const int64_t n = in.q.size(1);
  at::Tensor s = at::bmm(q, k.transpose(1, 2)).mul_(in.options.scale);
  return cap_(s, in.options)
      .view({n, block.q_end - block.q_begin, block.k_end - block.k_begin})
      .masked_fill_(hidden_mask(in, block), -std::numeric_limits<double>::infinity());
}

/// The derivative of the cap, from capped scores; undefined: there is no cap.
at::Tensor cap_slope(const at::Tensor& scores, const CoreAttentionOptions& options) {
  if (options.cap == 0) return {};
  // Of hidden keys, whose score is -inf, it is 0.
  return 1 - (scores / options.cap).clamp_(-1, 1).square_();
}

/// The dropout factor 0 or 1 / (1 - p) of every probability, by its global address.
at::Tensor dropout_factors(const AttentionInputs& in, const Block& block) {
  const int64_t n = in.q.size(1), q = block.q_end - block.q_begin, k = block.k_end - block.k_begin;
  const at::Tensor rows = in.row_ids.narrow(0, block.q_begin, q);
  const at::Tensor ones = at::ones({n, q, k}, in.q.options().dtype(acc_of(in.q)));
  for (int64_t head = 0; head < n; ++head) {
    const at::Tensor slice = ones.select(0, head);
    kernels::dropout({.dtype = nn::kernel_dtype(ones.scalar_type()),
                      .rows = q,
                      .cols = k,
                      .x = slice.data_ptr(),
                      .y = slice.data_ptr(),
                      .p = in.options.dropout,
                      .key = Stream(in.seed, "attention_dropout").key(),
                      .site = in.options.site,
                      .row_ids = reinterpret_cast<const uint64_t*>(rows.data_ptr<int64_t>()),
                      .feature_offset = (in.options.head_offset + head) * kHeadStride +
                                        block.k_begin % in.sequence},
                     nn::KernelContext(ones));
  }
  return ones;
}

} // namespace

at::Tensor& cap_(at::Tensor& scores, const CoreAttentionOptions& options) {
  return options.cap == 0 ? scores : scores.div_(options.cap).tanh_().mul_(options.cap);
}

AttentionResult blocked_forward(const AttentionInputs& in) {
  const int64_t n = in.q.size(1), g = in.k.size(1);
  AttentionResult result{at::empty(in.q.sizes(), in.q.options()),
                         at::empty({n, in.q.size(0)}, in.q.options().dtype(acc_of(in.q)))};
  const at::Tensor sinks = sink_logits(in.q, in.options);
  for (const Block& block : blocks(in)) {
    const int64_t tokens = block.q_end - block.q_begin;
    const at::Tensor q = grouped(in.q, block.q_begin, block.q_end, g);
    const at::Tensor k = grouped(in.k, block.k_begin, block.k_end, g),
                     v = grouped(in.v, block.k_begin, block.k_end, g);
    at::Tensor s = block_scores(in, block, q, k);
    at::Tensor lse = s.logsumexp(2);
    if (sinks.defined()) lse = at::logaddexp(lse, sinks);
    at::Tensor p = s.sub_(lse.unsqueeze(2)).exp_();
    if (in.row_ids.defined()) p.mul_(dropout_factors(in, block));
    const at::Tensor o = at::bmm(p.view({g, n / g * tokens, -1}), v);
    result.out.narrow(0, block.q_begin, tokens).copy_(ungrouped(o, n, tokens));
    result.lse.narrow(1, block.q_begin, tokens).copy_(lse);
  }
  return result;
}

AttentionGradients blocked_backward(const AttentionInputs& in, const AttentionResult& saved,
                                    const at::Tensor& dout) {
  const int64_t n = in.q.size(1), g = in.k.size(1);
  const auto acc = in.q.options().dtype(acc_of(in.q));
  AttentionGradients grads{at::empty(in.q.sizes(), in.q.options()), {}, {}, {}};
  const at::Tensor dk_acc = at::zeros(in.k.sizes(), acc), dv_acc = at::zeros(in.v.sizes(), acc);
  const at::Tensor sinks = sink_logits(in.q, in.options);
  if (in.options.softmax == SoftmaxKind::kLearnable) grads.dsinks = at::zeros({n}, acc);
  for (const Block& block : blocks(in)) {
    const int64_t tokens = block.q_end - block.q_begin, keys = block.k_end - block.k_begin;
    const at::Tensor q = grouped(in.q, block.q_begin, block.q_end, g);
    const at::Tensor k = grouped(in.k, block.k_begin, block.k_end, g),
                     v = grouped(in.v, block.k_begin, block.k_end, g);
    const at::Tensor o = grouped(saved.out, block.q_begin, block.q_end, g),
                     d = grouped(dout, block.q_begin, block.q_end, g);
    const at::Tensor lse = saved.lse.narrow(1, block.q_begin, tokens);
    const at::Tensor scores = block_scores(in, block, q, k);
    const at::Tensor slope = cap_slope(scores, in.options);
    const at::Tensor p = scores.sub_(lse.unsqueeze(2)).exp_();
    at::Tensor dp = at::bmm(d, v.transpose(1, 2)).view({n, tokens, keys});
    at::Tensor dropped = p;
    if (in.row_ids.defined()) {
      const at::Tensor factors = dropout_factors(in, block);
      dropped = p * factors;
      dp.mul_(factors);
    }
    const auto as_groups = [&](const at::Tensor& x) { return x.view({g, n / g * tokens, keys}); };
    const at::Tensor delta = (d * o).sum(2).view({n, tokens, 1});
    dv_acc.narrow(0, block.k_begin, keys)
        .add_(at::bmm(as_groups(dropped).transpose(1, 2), d).permute({1, 0, 2}));
    if (grads.dsinks.defined()) {
      grads.dsinks.sub_((at::exp(sinks - lse) * delta.squeeze(2)).sum(1));
    }
    const at::Tensor ds = dp.sub_(delta).mul_(p).mul_(in.options.scale);
    if (slope.defined()) ds.mul_(slope);
    grads.dq.narrow(0, block.q_begin, tokens)
        .copy_(ungrouped(at::bmm(as_groups(ds), k), n, tokens));
    dk_acc.narrow(0, block.k_begin, keys)
        .add_(at::bmm(as_groups(ds).transpose(1, 2), q).permute({1, 0, 2}));
  }
  grads.dk = dk_acc.to(in.k.scalar_type());
  grads.dv = dv_acc.to(in.v.scalar_type());
  return grads;
}

} // namespace pentatron::layers::detail
