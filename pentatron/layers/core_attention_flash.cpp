// Plain causal attention through LibTorch's fused kernels, one call for a batch of equal documents
// or one for each document.
#include <ATen/ATen.h>

#include "pentatron/layers/core_attention_detail.h"

namespace pentatron::layers::detail {

namespace {

/// Tokens [begin, begin + count) as `batch` x `sequence` in the fused kernel's shape. The kernel
/// wants as many key heads as query heads: with groups, a group becomes a batch entry whose key
/// head is repeated with stride 0.
struct Piece {
  int64_t begin = 0, batch = 0, sequence = 0;
};

std::vector<Piece> pieces(const AttentionInputs& in) {
  const bool grouped = in.q.size(1) != in.k.size(1);
  const bool dense = static_cast<int64_t>(in.documents.size()) == in.batch + 1;
  if (dense && !grouped) return {{0, in.batch, in.sequence}};
  std::vector<Piece> result;
  for (size_t d = 0; d + 1 < in.documents.size(); ++d) {
    result.push_back({in.documents[d], 1, in.documents[d + 1] - in.documents[d]});
  }
  return result;
}

/// x [T, heads, d] -> [batch, heads, sequence, d], or of one sample [groups, heads / groups,
/// sequence, d].
at::Tensor view_of(const at::Tensor& x, const Piece& piece, int64_t groups, int64_t repeat) {
  const at::Tensor part = x.narrow(0, piece.begin, piece.batch * piece.sequence);
  const int64_t heads = x.size(1), d = x.size(2);
  if (repeat == 0) {
    return part.as_strided({piece.batch, heads, piece.sequence, d},
                           {piece.sequence * x.stride(0), x.stride(1), x.stride(0), 1});
  }
  const int64_t inner = heads / groups;
  if (inner == 1)
    return part.as_strided({groups, repeat, piece.sequence, d}, {x.stride(1), 0, x.stride(0), 1});
  return part.as_strided({groups, inner, piece.sequence, d},
                         {inner * x.stride(1), x.stride(1), x.stride(0), 1});
}

struct Views {
  at::Tensor q, k, v;
};

Views views_of(const AttentionInputs& in, const Piece& piece) {
  const int64_t n = in.q.size(1), g = in.k.size(1);
  const int64_t repeat = n == g ? 0 : n / g;
  const auto key = [&](const at::Tensor& x) { return view_of(x, piece, g, repeat); };
  return {view_of(in.q, piece, g, repeat), key(in.k), key(in.v)};
}

} // namespace

AttentionResult flash_forward(const AttentionInputs& in) {
  const int64_t n = in.q.size(1), g = in.k.size(1);
  AttentionResult result;
  result.out = at::empty(in.q.sizes(), in.q.options());
  const at::ScalarType acc = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  result.lse = at::empty({n * in.q.size(0)}, in.q.options().dtype(acc));
  for (const Piece& piece : pieces(in)) {
    const Views x = views_of(in, piece);
    const int64_t repeat = n == g ? 0 : n / g;
    at::Tensor out = view_of(result.out, piece, g, repeat);
    at::Tensor lse = result.lse.narrow(0, piece.begin * n, piece.batch * piece.sequence * n);
    const auto [o, l] = at::_scaled_dot_product_flash_attention_for_cpu(x.q, x.k, x.v, 0.0, true,
                                                                        {}, in.options.scale);
    out.copy_(o);
    lse.copy_(l.reshape({-1}));
  }
  return result;
}

AttentionGradients flash_backward(const AttentionInputs& in, const AttentionResult& saved,
                                  const at::Tensor& dout) {
  const int64_t n = in.q.size(1), g = in.k.size(1), repeat = n == g ? 0 : n / g;
  AttentionGradients grads{at::empty(in.q.sizes(), in.q.options()),
                           at::empty(in.k.sizes(), in.k.options()),
                           at::empty(in.v.sizes(), in.v.options()),
                           {}};
  for (const Piece& piece : pieces(in)) {
    const Views x = views_of(in, piece);
    const at::Tensor out = view_of(saved.out, piece, g, repeat),
                     d = view_of(dout, piece, g, repeat);
    const at::Tensor lse = saved.lse.narrow(0, piece.begin * n, piece.batch * piece.sequence * n)
                               .view({x.q.size(0), x.q.size(1), piece.sequence});
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        d, x.q, x.k, x.v, out, lse, 0.0, true, {}, in.options.scale);
    view_of(grads.dq, piece, g, repeat).copy_(dq);
    if (repeat == 0) {
      view_of(grads.dk, piece, g, 0).copy_(dk);
      view_of(grads.dv, piece, g, 0).copy_(dv);
    } else {
      // Gradients of the repeated key heads belong to one head.
      const auto fold = [&](const at::Tensor& target, const at::Tensor& source) {
        const at::ScalarType acc = source.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
        target.narrow(0, piece.begin, piece.sequence)
            .copy_(source.sum({1}, false, acc).transpose(0, 1));
      };
      fold(grads.dk, dk);
      fold(grads.dv, dv);
    }
  }
  return grads;
}

} // namespace pentatron::layers::detail
