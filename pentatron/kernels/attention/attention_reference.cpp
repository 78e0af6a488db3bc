#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "pentatron/kernels/attention/attention.h"
#include "pentatron/kernels/common/scalar.h"

namespace pentatron::kernels {
namespace {

DType statistics(const AttentionShape& s) {
  return acc_dtype(s.dtype);
}

int64_t at(const HeadsView& x, int64_t token, int64_t head) {
  return token * x.token_stride + head * x.head_stride;
}

double dot(const AttentionShape& s, const HeadsView& x, int64_t ix, const HeadsView& y,
           int64_t iy) {
  double sum = 0;
  for (int64_t c = 0; c < s.head_size; ++c)
    sum += load_as_double(x.data, s.dtype, ix + c) * load_as_double(y.data, s.dtype, iy + c);
  return sum;
}

/// f(query, first visible token) for every token.
template <class F> void for_each_query(const AttentionShape& s, F&& f) {
  for (size_t d = 0; d + 1 < s.documents.size(); ++d) {
    for (int64_t i = s.documents[d]; i < s.documents[d + 1]; ++i) {
      f(i, s.window > 0 ? std::max(s.documents[d], i - s.window + 1) : s.documents[d]);
    }
  }
}

} // namespace

void attention_forward_reference(const AttentionForward& a, const Context&) {
  const AttentionShape& s = a.shape;
  const int64_t tokens = s.documents.back(), group = s.heads / s.kv_heads;
  for (int64_t h = 0; h < s.heads; ++h) {
    for_each_query(s, [&](int64_t i, int64_t first) {
      std::vector<double> p;
      double top = s.sinks ? load_as_double(s.sinks, statistics(s), h)
                           : -std::numeric_limits<double>::infinity();
      for (int64_t j = first; j <= i; ++j) {
        p.push_back(s.scale * dot(s, a.q, at(a.q, i, h), a.k, at(a.k, j, h / group)));
        top = std::max(top, p.back());
      }
      double sum = s.sinks ? std::exp(load_as_double(s.sinks, statistics(s), h) - top) : 0;
      for (double& x : p) sum += x = std::exp(x - top);
      store_from_double(a.lse, statistics(s), h * tokens + i, top + std::log(sum));
      for (int64_t c = 0; c < s.head_size; ++c) {
        double x = 0;
        for (int64_t j = first; j <= i; ++j)
          x += p[j - first] * load_as_double(a.v.data, s.dtype, at(a.v, j, h / group) + c);
        store_from_double(a.out.data, s.dtype, at(a.out, i, h) + c, x / sum);
      }
    });
  }
}

void attention_backward_reference(const AttentionBackward& a, const Context&) {
  const AttentionShape& s = a.shape;
  const int64_t tokens = s.documents.back(), group = s.heads / s.kv_heads, d = s.head_size;
  std::vector<double> dq(tokens * s.heads * d), dk(tokens * s.kv_heads * d), dv(dk.size()),
      dsinks(s.heads);
  for (int64_t h = 0; h < s.heads; ++h) {
    const int64_t g = h / group;
    for_each_query(s, [&](int64_t i, int64_t first) {
      const double delta = dot(s, a.dout, at(a.dout, i, h), a.out, at(a.out, i, h));
      const double lse = load_as_double(a.lse, statistics(s), h * tokens + i);
      if (s.sinks) dsinks[h] -= std::exp(load_as_double(s.sinks, statistics(s), h) - lse) * delta;
      for (int64_t j = first; j <= i; ++j) {
        const double p = std::exp(s.scale * dot(s, a.q, at(a.q, i, h), a.k, at(a.k, j, g)) - lse);
        const double ds =
            p * (dot(s, a.dout, at(a.dout, i, h), a.v, at(a.v, j, g)) - delta) * s.scale;
        for (int64_t c = 0; c < d; ++c) {
          dq[(i * s.heads + h) * d + c] +=
              ds * load_as_double(a.k.data, s.dtype, at(a.k, j, g) + c);
          dk[(j * s.kv_heads + g) * d + c] +=
              ds * load_as_double(a.q.data, s.dtype, at(a.q, i, h) + c);
          dv[(j * s.kv_heads + g) * d + c] +=
              p * load_as_double(a.dout.data, s.dtype, at(a.dout, i, h) + c);
        }
      }
    });
  }
  const auto write = [&](const HeadsView& x, const std::vector<double>& from, int64_t heads) {
    for (int64_t i = 0; i < tokens * heads * d; ++i) {
      store_from_double(x.data, s.dtype, at(x, i / d / heads, i / d % heads) + i % d, from[i]);
    }
  };
  write(a.dq, dq, s.heads);
  write(a.dk, dk, s.kv_heads);
  write(a.dv, dv, s.kv_heads);
  for (int64_t h = 0; s.sinks && h < s.heads; ++h)
    store_from_double(a.dsinks, statistics(s), h, dsinks[h]);
}

} // namespace pentatron::kernels
