#include "pentatron/kernels/attention/attention.h"

#include <algorithm>
#include <array>

#include "pentatron/base/error.h"
#include "pentatron/kernels/attention/attention_simd.h"
#include "pentatron/kernels/common/dispatch.h"

namespace pentatron::kernels {
namespace {

template <class Args> std::string refuse_avx2(const Args& a, const Context& context) {
  return attention_detail::refuse_avx2(a.shape, context);
}

template <class Args> std::string refuse_avx512(const Args& a, const Context& context) {
  return attention_detail::refuse_avx512(a.shape, context);
}

template <class Args> std::string refuse_amx(const Args& a, const Context& context) {
  return attention_detail::refuse_amx(a.shape, context);
}

template <class Args> std::string refuse_reference(const Args&, const Context& context) {
  if (context.device != Device::kCpu) return "needs CPU memory";
  return {};
}

constexpr std::array<Entry<AttentionForward>, 4> kForward = {
    {{"amx_bf16", refuse_amx<AttentionForward>, attention_detail::forward_amx},
     {"avx512", refuse_avx512<AttentionForward>, attention_detail::forward_avx512},
     {"avx2", refuse_avx2<AttentionForward>, attention_detail::forward_avx2},
     {"reference", refuse_reference<AttentionForward>, attention_forward_reference}}};
constexpr std::array<Entry<AttentionBackward>, 4> kBackward = {
    {{"amx_bf16", refuse_amx<AttentionBackward>, attention_detail::backward_amx},
     {"avx512", refuse_avx512<AttentionBackward>, attention_detail::backward_avx512},
     {"avx2", refuse_avx2<AttentionBackward>, attention_detail::backward_avx2},
     {"reference", refuse_reference<AttentionBackward>, attention_backward_reference}}};

void check(const AttentionShape& s, const AttentionPair& p) {
  if (p.query_size < 0 || p.key_size < 0 || p.query_begin < 0 || p.key_begin < 0 ||
      p.query_begin + p.query_size > s.queries) {
    raise<ShapeError>("attention: queries {} + {} and keys {} + {} are no pair of {} queries",
                      p.query_begin, p.query_size, p.key_begin, p.key_size, s.queries);
  }
  const int64_t last_position = p.key_position + std::max<int64_t>(p.key_size, 1) - 1;
  if (s.dropout.p > 0 && (p.key_position < 0 || last_position >= AttentionDropout::kHeadStride)) {
    raise<ShapeError>("attention: keys at positions {} to {} have no numbers for dropout",
                      p.key_position, last_position);
  }
  if (s.bias == nullptr || p.query_size == 0 || p.key_size == 0) return;
  const int64_t distance = std::max(p.query_size - 1 - p.offset, p.offset + p.key_size - 1);
  if (distance >= s.span) {
    raise<ShapeError>("attention: a bias of span {} has no column for the distance {}", s.span,
                      distance);
  }
}

void check(const AttentionShape& s) {
  if (s.heads <= 0 || s.kv_heads <= 0 || s.heads % s.kv_heads != 0) {
    raise<ShapeError>("attention: {} query heads are not a multiple of {} key-value heads", s.heads,
                      s.kv_heads);
  }
  if (s.head_size <= 0) raise<ShapeError>("attention: head_size={} is not positive", s.head_size);
  if (!(s.scale > 0)) raise<ShapeError>("attention: scale={} is not positive", s.scale);
  if (!(s.cap >= 0)) raise<ShapeError>("attention: cap={} is negative", s.cap);
  if (!(s.dropout.p >= 0 && s.dropout.p <= 1))
    raise<ShapeError>("attention: dropout={} is not a probability", s.dropout.p);
  if (s.dropout.p > 0 && s.dropout.row_ids == nullptr)
    raise<ShapeError>("attention: dropout without the queries' row_ids");
  if (s.dropout.first_head < 0)
    raise<ShapeError>("attention: first_head={} is negative", s.dropout.first_head);
  if (s.value_size < 0) raise<ShapeError>("attention: value_size={} is negative", s.value_size);
  for (const AttentionPair& p : s.pairs) check(s, p);
}

template <class Args>
void run(Op op, std::span<const Entry<Args>> entries, const Args& args, const Context& context) {
  check(args.shape);
  const OpClass c = attention_class(op, args.shape.dtype, args.shape.head_size);
  if (const Entry<Args>* entry = find_entry(c, entries, args, context))
    return entry->run(args, context);
  raise<ShapeError>("attention: no implementation takes {}{}", name(args.shape.dtype),
                    refusals(entries, args, context));
}

} // namespace

std::span<const Entry<AttentionForward>> attention_forward_entries() {
  return kForward;
}
std::span<const Entry<AttentionBackward>> attention_backward_entries() {
  return kBackward;
}

bool attention_supported(const AttentionShape& shape, const Context& context) {
  const bool fast = attention_detail::refuse_avx512(shape, context).empty() ||
                    attention_detail::refuse_avx2(shape, context).empty();
  const int chosen =
      chosen_position(attention_class(Op::kAttentionForward, shape.dtype, shape.head_size));
  return fast &&
         (chosen < 0 || kForward[static_cast<size_t>(chosen)].run != attention_forward_reference);
}

void attention_forward(const AttentionForward& args, const Context& context) {
  const AttentionShape& s = args.shape;
  if (args.max_logits != nullptr && (s.sinks != nullptr || s.bias != nullptr || s.cap != 0))
    raise<ShapeError>("attention: max_logits are those without sinks, bias and cap");
  run<AttentionForward>(Op::kAttentionForward, kForward, args, context);
}
void attention_backward(const AttentionBackward& args, const Context& context) {
  if (args.shape.sinks != nullptr && args.dsinks == nullptr)
    raise<ShapeError>("attention: sinks without a place for dsinks");
  if (args.shape.bias != nullptr && args.dbias == nullptr)
    raise<ShapeError>("attention: a bias without a place for dbias");
  run<AttentionBackward>(Op::kAttentionBackward, kBackward, args, context);
}

} // namespace pentatron::kernels
