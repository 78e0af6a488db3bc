// Attention with everything, in blocks of queries: masks, windows, sinks, bias, dropout, any type
// and device. Scores of one block exist at a time; backward computes them again from the saved
// log-sum-exp.
#include <ATen/ATen.h>

#include "pentatron/base/philox.h"
#include "pentatron/kernels/dropout/dropout.h"
#include "pentatron/layers/core_attention_detail.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::layers::detail {

namespace {

constexpr int64_t kQueryBlock = 128;

/// Queries and the keys that some of them see; never without keys.
struct Block {
  const AttentionPair* pair = nullptr;
  int64_t query = 0, queries = 0; // from the first of the pair
  int64_t key = 0, keys = 0;
  int64_t token() const { return pair->query_begin + query; }
  int64_t key_token() const { return pair->key_begin + key; }
};

/// Keys [first, last) of the pair that queries [begin, end) of it see.
Block block_of(const AttentionPair& pair, const CoreAttentionOptions& o, int64_t begin,
               int64_t end) {
  int64_t first = 0, last = pair.key_size;
  if (o.mask != AttentionMask::kFull) {
    last = end - pair.offset;
    if (o.mask == AttentionMask::kPrefix) last = std::max(last, pair.prefix);
  }
  if (o.window > 0) {
    first = begin - pair.offset - o.window + 1;
    last = std::min(last, end - pair.offset + o.window - 1);
  }
  first = std::clamp<int64_t>(first, 0, pair.key_size);
  last = std::clamp<int64_t>(last, first, pair.key_size);
  return {&pair, begin, end - begin, first, last - first};
}

std::vector<Block> blocks(const AttentionInputs& in) {
  std::vector<Block> result;
  for (const AttentionPair& pair : in.pairs) {
    for (int64_t q = 0; q < pair.query_size; q += kQueryBlock)
      result.push_back(block_of(pair, in.options, q, std::min(pair.query_size, q + kQueryBlock)));
  }
  return result;
}

at::ScalarType acc_of(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// [tokens, heads, d] -> [g, heads / g * tokens, d] in the accumulate type.
at::Tensor grouped(const at::Tensor& x, int64_t begin, int64_t tokens, int64_t groups) {
  const int64_t heads = x.size(1), d = x.size(2);
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
  const CoreAttentionOptions& o = in.options;
  const auto options = at::TensorOptions(at::kLong).device(in.q.device());
  const at::Tensor j = at::arange(block.key, block.key + block.keys, options).unsqueeze(0);
  const at::Tensor distance =
      at::arange(block.query, block.query + block.queries, options).unsqueeze(1) -
      (j + block.pair->offset);
  at::Tensor hidden =
      o.mask == AttentionMask::kFull ? at::zeros_like(distance, at::kBool) : distance < 0;
  if (o.mask == AttentionMask::kPrefix) hidden.logical_and_(j >= block.pair->prefix);
  if (o.window > 0) hidden.logical_or_(distance.abs() >= o.window);
  return hidden;
}

/// Scores [n, q, k] of a block without bias and mask.
at::Tensor plain_scores(const AttentionInputs& in, const Block& block, const at::Tensor& q,
                        const at::Tensor& k) {
  at::Tensor s = at::bmm(q, k.transpose(1, 2)).mul_(in.options.scale);
  return cap_(s, in.options).view({in.q.size(1), block.queries, block.keys});
}

/// Adds the bias; hidden scores become -inf.
at::Tensor& mask_(at::Tensor& scores, const AttentionInputs& in, const Block& block) {
  if (in.bias.defined()) {
    scores.add_(bias_block(in.bias, block.query, block.queries, block.key + block.pair->offset,
                           block.keys));
  }
  return scores.masked_fill_(hidden_mask(in, block), -std::numeric_limits<double>::infinity());
}

/// exp(scores - lse) in place; of queries that see nothing 0.
at::Tensor probabilities_(at::Tensor& scores, const at::Tensor& lse) {
  return scores
      .sub_(lse.masked_fill(lse == -std::numeric_limits<double>::infinity(), 0).unsqueeze(2))
      .exp_();
}

/// dbias += ds [n, q, k], row after row.
void sum_bias(const AttentionInputs& in, const Block& block, const at::Tensor& ds,
              const at::Tensor& dbias) {
  const int64_t first =
      in.span() - 1 + block.query - (block.key + block.keys - 1 + block.pair->offset);
  const at::Tensor from_last = ds.flip(2);
  for (int64_t i = 0; i < block.queries; ++i)
    dbias.narrow(1, first + i, block.keys).add_(from_last.select(1, i));
}

/// The derivative of the cap, from capped scores; undefined: there is no cap.
at::Tensor cap_slope(const at::Tensor& scores, const CoreAttentionOptions& options) {
  if (options.cap == 0) return {};
  return 1 - (scores / options.cap).clamp_(-1, 1).square_();
}

/// The dropout factor 0 or 1 / (1 - p) of every probability, by its global address.
at::Tensor dropout_factors(const AttentionInputs& in, const Block& block) {
  const int64_t n = in.q.size(1);
  const kernels::AttentionDropout d = dropout_of(in);
  const at::Tensor ones =
      at::ones({n, block.queries, block.keys}, in.q.options().dtype(acc_of(in.q)));
  for (int64_t head = 0; head < n; ++head) {
    const at::Tensor slice = ones.select(0, head);
    kernels::dropout({.dtype = nn::kernel_dtype(ones.scalar_type()),
                      .rows = block.queries,
                      .cols = block.keys,
                      .x = slice.data_ptr(),
                      .y = slice.data_ptr(),
                      .p = d.p,
                      .key = d.key,
                      .site = d.site,
                      .row_ids = d.row_ids + block.token(),
                      .feature_offset = d.feature(head, block.pair->key_position + block.key)},
                     nn::KernelContext(ones));
  }
  return ones;
}

/// Operands of a block in the accumulate type, by key heads.
struct Operands {
  Operands(const AttentionInputs& in, const Block& b)
      : q(grouped(in.q, b.token(), b.queries, in.k.size(1))),
        k(grouped(in.k, b.key_token(), b.keys, in.k.size(1))),
        v(grouped(in.v, b.key_token(), b.keys, in.k.size(1))) {}
  at::Tensor q, k, v;
};

} // namespace

kernels::AttentionDropout dropout_of(const AttentionInputs& in) {
  return {.p = in.options.dropout,
          .key = Stream(in.seed, "attention_dropout").key(),
          .site = in.options.site,
          .row_ids = reinterpret_cast<const uint64_t*>(in.row_ids.data_ptr<int64_t>()),
          .first_head = in.options.head_offset};
}

at::Tensor& cap_(at::Tensor& scores, const CoreAttentionOptions& options) {
  return options.cap == 0 ? scores : scores.div_(options.cap).tanh_().mul_(options.cap);
}

at::Tensor bias_block(const at::Tensor& bias, int64_t query, int64_t queries, int64_t key,
                      int64_t keys) {
  // Row i, column j is column first + i + (keys - 1 - j) of the table.
  const int64_t first = (bias.size(1) + 1) / 2 - 1 + query - (key + keys - 1);
  return bias.narrow(1, first, queries + keys - 1).unfold(1, keys, 1).flip(2);
}

void raise_max_logits(const AttentionInputs& in) {
  AttentionInputs plain = in;
  if (!in.real_pairs.empty()) plain.pairs = in.real_pairs;
  plain.options.cap = 0;
  plain.bias = at::Tensor();
  for (const Block& block : blocks(plain)) {
    if (block.queries == 0 || block.keys == 0) continue;
    const Operands x(plain, block);
    at::Tensor s = plain_scores(plain, block, x.q, x.k);
    at::maximum_out(plain.max_logits, plain.max_logits, mask_(s, plain, block).amax({1, 2}));
  }
}

AttentionResult blocked_forward(const AttentionInputs& in) {
  const int64_t n = in.q.size(1), g = in.k.size(1);
  AttentionResult result = make_result(in);
  const at::Tensor sinks = sink_logits(in.q, in.options);
  for (const Block& block : blocks(in)) {
    const Operands x(in, block);
    at::Tensor s = plain_scores(in, block, x.q, x.k);
    mask_(s, in, block);
    at::Tensor lse = s.logsumexp(2);
    if (sinks.defined()) lse = at::logaddexp(lse, sinks);
    const at::Tensor p = probabilities_(s, lse);
    if (in.row_ids.defined()) p.mul_(dropout_factors(in, block));
    const at::Tensor o = at::bmm(p.view({g, n / g * block.queries, block.keys}), x.v);
    result.out.narrow(0, block.token(), block.queries).copy_(ungrouped(o, n, block.queries));
    result.lse.narrow(1, block.token(), block.queries).copy_(lse);
  }
  return result;
}

AttentionGradients blocked_backward(const AttentionInputs& in, const AttentionResult& saved,
                                    const OutputGradients& d_out) {
  const int64_t n = in.q.size(1), g = in.k.size(1);
  const auto acc = in.q.options().dtype(acc_of(in.q));
  AttentionGradients grads = make_gradients(in);
  const at::Tensor dk_acc = at::zeros(in.k.sizes(), acc), dv_acc = at::zeros(in.v.sizes(), acc);
  const at::Tensor sinks = sink_logits(in.q, in.options);
  for (const Block& block : blocks(in)) {
    const int64_t tokens = block.queries, keys = block.keys;
    const Operands x(in, block);
    const at::Tensor o = grouped(saved.out, block.token(), tokens, g),
                     d = grouped(d_out.out, block.token(), tokens, g);
    const at::Tensor lse = saved.lse.narrow(1, block.token(), tokens);
    at::Tensor scores = plain_scores(in, block, x.q, x.k);
    const at::Tensor slope = cap_slope(scores, in.options);
    const at::Tensor p = probabilities_(mask_(scores, in, block), lse);
    at::Tensor dp = at::bmm(d, x.v.transpose(1, 2)).view({n, tokens, keys});
    at::Tensor dropped = p;
    if (in.row_ids.defined()) {
      const at::Tensor factors = dropout_factors(in, block);
      dropped = p * factors;
      dp.mul_(factors);
    }
    const auto as_groups = [&](const at::Tensor& y) { return y.view({g, n / g * tokens, keys}); };
    at::Tensor delta = (d * o).sum(2).view({n, tokens, 1});
    if (d_out.lse.defined()) {
      delta = delta - d_out.lse.narrow(1, block.token(), tokens)
                          .masked_fill(lse == -std::numeric_limits<double>::infinity(), 0)
                          .unsqueeze(2);
    }
    dv_acc.narrow(0, block.key_token(), keys)
        .add_(at::bmm(as_groups(dropped).transpose(1, 2), d).permute({1, 0, 2}));
    if (grads.dsinks.defined()) grads.dsinks.sub_((at::exp(sinks - lse) * delta.squeeze(2)).sum(1));
    const at::Tensor ds = dp.sub_(delta).mul_(p);
    if (grads.dbias.defined()) sum_bias(in, block, ds, grads.dbias);
    ds.mul_(in.options.scale);
    if (slope.defined()) ds.mul_(slope);
    grads.dq.narrow(0, block.token(), tokens)
        .copy_(ungrouped(at::bmm(as_groups(ds), x.k), n, tokens));
    dk_acc.narrow(0, block.key_token(), keys)
        .add_(at::bmm(as_groups(ds).transpose(1, 2), x.q).permute({1, 0, 2}));
  }
  grads.dk = dk_acc.to(in.k.scalar_type());
  grads.dv = dv_acc.to(in.v.scalar_type());
  return grads;
}

} // namespace pentatron::layers::detail
