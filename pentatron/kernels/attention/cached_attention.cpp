#include "pentatron/kernels/attention/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "pentatron/kernels/attention/cached_attention_entries.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/quantize/formats.h"

namespace pentatron::kernels {

namespace {

void check(const CachedAttention& a) {
  if (a.heads <= 0 || a.kv_heads <= 0 || a.heads % a.kv_heads != 0)
    raise<ShapeError>("cached_attention: {} query heads are not a multiple of {} key-value heads",
                      a.heads, a.kv_heads);
  if (a.value_size < 0 || a.value_size > a.head_size)
    raise<ShapeError>("cached_attention: value_size={} is not in 0 to head_size={}", a.value_size,
                      a.head_size);
  for (const CachedSequence& s : a.sequences) {
    if (s.first < 0 || s.count < 0 || s.length < (a.causal ? s.count : 0))
      raise<ShapeError>("cached_attention: {} new tokens in a sequence of {}", s.count, s.length);
    const auto pages = static_cast<int64_t>(std::min(s.k.size(), s.v.size()));
    if (s.length > 0 && (a.page < 1 || pages < (s.length + a.page - 1) / a.page))
      raise<ShapeError>("cached_attention: {} pages of {} tokens for a sequence of {}", pages,
                        a.page, s.length);
    if (a.bias != nullptr && s.length > a.span)
      raise<ShapeError>("cached_attention: a bias for distances below {} and a sequence of {}",
                        a.span, s.length);
  }
}

} // namespace

int64_t count_items(const CachedAttention& a) {
  int64_t tokens = 0;
  for (const CachedSequence& s : a.sequences) tokens += s.count;
  return tokens * a.kv_heads;
}

CachedItem item_at(const CachedAttention& a, int64_t i) {
  int64_t token = i / a.kv_heads;
  const CachedSequence* s = a.sequences.data();
  for (; token >= s->count; ++s) token -= s->count;
  const int64_t position = a.causal ? s->length - s->count + token : 0;
  const int64_t last = a.causal ? position + 1 : s->length;
  return {.sequence = s,
          .token = s->first + token,
          .head = i % a.kv_heads,
          .first = a.window > 0 ? std::max<int64_t>(0, last - a.window) : 0,
          .last = last,
          .position = position};
}

namespace cached_attention_reference {

void forward(const CachedAttention& a, const Context&) {
  const DType acc = acc_dtype(a.dtype);
  const int64_t group = a.heads / a.kv_heads, d = a.head_size, e = a.head_size_of_values();
  const int64_t items = count_items(a);
  for (int64_t i = 0; i < items; ++i) {
    const CachedItem item = item_at(a, i);
    const auto row = [&](int64_t j) {
      return j % a.page * a.kv_token_stride + item.head * a.kv_head_stride;
    };
    const auto page = [&](std::span<const void* const> pages, int64_t j) {
      return pages[static_cast<size_t>(j / a.page)];
    };
    const auto kept = [&](const void* data, int64_t at, int64_t c) {
      if (!a.fp8) return load_as_double(data, a.dtype, at + c);
      const uint8_t* const codes = static_cast<const uint8_t*>(data) + at;
      float scale = 0;
      std::memcpy(&scale, codes + d, sizeof scale);
      return static_cast<double>(value_of(kE4M3, codes[c]) * scale);
    };
    for (int64_t h = item.head * group; h < (item.head + 1) * group; ++h) {
      const int64_t q = item.token * a.q.token_stride + h * a.q.head_stride;
      const int64_t out = item.token * a.out.token_stride + h * a.out.head_stride;
      std::vector<double> p;
      double top = a.sinks != nullptr ? load_as_double(a.sinks, acc, h)
                                      : -std::numeric_limits<double>::infinity();
      for (int64_t j = item.first; j < item.last; ++j) {
        double dot = 0;
        for (int64_t c = 0; c < d; ++c)
          dot +=
              load_as_double(a.q.data, a.dtype, q + c) * kept(page(item.sequence->k, j), row(j), c);
        double score = a.scale * dot;
        if (a.cap > 0) score = a.cap * std::tanh(score / a.cap);
        if (a.bias != nullptr)
          score +=
              load_as_double(a.bias, acc, h * (2 * a.span - 1) + a.span - 1 + item.position - j);
        p.push_back(score);
        top = std::max(top, p.back());
      }
      double sum = a.sinks != nullptr ? std::exp(load_as_double(a.sinks, acc, h) - top) : 0;
      for (double& x : p) sum += x = std::exp(x - top);
      for (int64_t c = 0; c < e; ++c) {
        double x = 0;
        for (int64_t j = item.first; j < item.last; ++j)
          x += p[static_cast<size_t>(j - item.first)] * kept(page(item.sequence->v, j), row(j), c);
        store_from_double(a.out.data, a.dtype, out + c, x / sum);
      }
    }
  }
}

} // namespace cached_attention_reference

std::span<const Entry<CachedAttention>> cached_attention_entries() {
  static const Entry<CachedAttention> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_float64_or_no_avx512, cached_attention_avx512::forward},
    {"avx2", refuse_float64_or_no_avx2, cached_attention_avx2::forward},
#endif
    {"reference", refuse_unless_cpu, cached_attention_reference::forward},
  };
  return entries;
}

void cached_attention(const CachedAttention& args, const Context& context) {
  check(args);
  run_entry(attention_class(Op::kCachedAttention, args.dtype, args.head_size),
            cached_attention_entries(), args, context);
}

} // namespace pentatron::kernels
