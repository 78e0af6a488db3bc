// Causal attention of equal positions, and full attention, through LibTorch's fused kernel of CPUs:
// one call for pairs of one size side by side, or one for each pair.
#include <ATen/ATen.h>

#include <algorithm>

#include "pentatron/layers/core_attention_detail.h"

namespace pentatron::layers::detail {

namespace {

/// Tokens [begin, begin + batch * size) as `batch` x `size` in the fused kernel's shape. The kernel
/// wants as many key heads as query heads: with groups, a group becomes a batch entry whose key
/// head is repeated with stride 0.
struct TokenBlock {
  int64_t begin = 0, size = 0;
};
struct Piece {
  int64_t batch = 0;
  TokenBlock queries, keys;
};

std::vector<Piece> pieces(const AttentionInputs& in) {
  std::vector<Piece> result;
  bool dense = in.q.size(1) == in.k.size(1);
  for (const AttentionPair& pair : in.pairs) {
    result.push_back({1, {pair.query_begin, pair.query_size}, {pair.key_begin, pair.key_size}});
    const Piece &first = result.front(), &last = result.back();
    const auto count = static_cast<int64_t>(result.size()) - 1;
    const auto follows = [&](const TokenBlock& a, const TokenBlock& b) {
      return b.size == a.size && b.begin == a.begin + count * a.size;
    };
    dense = dense && follows(first.queries, last.queries) && follows(first.keys, last.keys);
  }
  if (!dense || result.empty()) return result;
  result.front().batch = static_cast<int64_t>(result.size());
  result.resize(1);
  return result;
}

/// x [T, heads, d] -> [batch, heads, size, d], or of one sample [groups, heads / groups, size, d].
at::Tensor view_of(const at::Tensor& x, const TokenBlock& rows, int64_t batch, int64_t groups,
                   int64_t repeat) {
  const at::Tensor part = x.narrow(0, rows.begin, batch * rows.size);
  const int64_t heads = x.size(1), d = x.size(2);
  if (repeat == 0) {
    return part.as_strided({batch, heads, rows.size, d},
                           {rows.size * x.stride(0), x.stride(1), x.stride(0), 1});
  }
  const int64_t inner = heads / groups;
  if (inner == 1)
    return part.as_strided({groups, repeat, rows.size, d}, {x.stride(1), 0, x.stride(0), 1});
  return part.as_strided({groups, inner, rows.size, d},
                         {inner * x.stride(1), x.stride(1), x.stride(0), 1});
}

/// The views of one piece.
struct Views {
  Views(const AttentionInputs& in, const Piece& piece)
      : piece_(piece), g_(in.k.size(1)), repeat_(in.q.size(1) == g_ ? 0 : in.q.size(1) / g_),
        q(of_queries(in.q)), k(of_keys(in.k)), v(of_keys(in.v)) {}
  at::Tensor of_queries(const at::Tensor& x) const {
    return view_of(x, piece_.queries, piece_.batch, g_, repeat_);
  }
  at::Tensor of_keys(const at::Tensor& x) const {
    return view_of(x, piece_.keys, piece_.batch, g_, repeat_);
  }
  /// lse [n, T] in the kernel's order.
  at::Tensor of_lse(const at::Tensor& lse) const {
    const int64_t size = piece_.queries.size;
    const at::Tensor part = lse.narrow(1, piece_.queries.begin, piece_.batch * size);
    if (repeat_ == 0) return part.unflatten(1, {piece_.batch, size}).transpose(0, 1);
    return part.unflatten(0, {g_, repeat_});
  }
  /// Gradients of repeated key heads belong to one head.
  void fold(const at::Tensor& target, const at::Tensor& source) const {
    if (repeat_ == 0) {
      of_keys(target).copy_(source);
      return;
    }
    const at::ScalarType acc = source.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    target.narrow(0, piece_.keys.begin, piece_.keys.size)
        .copy_(source.sum({1}, false, acc).transpose(0, 1));
  }

 private:
  const Piece& piece_;
  int64_t g_, repeat_;

 public:
  at::Tensor q, k, v;
};

bool causal(const AttentionInputs& in) {
  return in.options.mask == AttentionMask::kCausal;
}

} // namespace

bool flash_accepts(const AttentionInputs& in) {
  const CoreAttentionOptions& o = in.options;
  if (!in.q.is_cpu() || o.cap != 0 || o.softmax != SoftmaxKind::kVanilla || in.bias.defined() ||
      in.row_ids.defined() || o.mask == AttentionMask::kPrefix || in.q.size(2) != in.v.size(2))
    return false;
  // Not by the documents of a sample: a token's result does not depend on its neighbours.
  if (o.window > 0 && o.window < in.sequence) return false;
  return std::ranges::all_of(in.pairs, [&](const AttentionPair& p) {
    const int64_t distance = std::max(p.query_size - 1 - p.offset, p.offset + p.key_size - 1);
    return (o.window == 0 || o.window > distance) &&
           (!causal(in) || (p.offset == 0 && p.query_size == p.key_size));
  });
}

AttentionResult flash_forward(const AttentionInputs& in) {
  AttentionResult result = make_result(in);
  for (const Piece& piece : pieces(in)) {
    const Views x(in, piece);
    const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        x.q, x.k, x.v, 0.0, causal(in), {}, in.options.scale);
    x.of_queries(result.out).copy_(out);
    x.of_lse(result.lse).copy_(lse);
  }
  return result;
}

AttentionGradients flash_backward(const AttentionInputs& in, const AttentionResult& saved,
                                  const OutputGradients& d) {
  AttentionGradients grads = make_gradients(in);
  for (const Piece& piece : pieces(in)) {
    const Views x(in, piece);
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        x.of_queries(d.out), x.q, x.k, x.v, x.of_queries(saved.out),
        x.of_lse(saved.lse).contiguous(), 0.0, causal(in), {}, in.options.scale);
    x.of_queries(grads.dq).copy_(dq);
    x.fold(grads.dk, dk);
    x.fold(grads.dv, dv);
  }
  return grads;
}

} // namespace pentatron::layers::detail
