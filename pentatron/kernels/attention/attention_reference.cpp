#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "pentatron/kernels/attention/attention.h"
#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/dropout/dropout.h"

namespace pentatron::kernels {
namespace {

DType statistics(const AttentionShape& s) {
  return acc_dtype(s.dtype);
}

int64_t at(const HeadsView& x, int64_t token, int64_t head) {
  return token * x.token_stride + head * x.head_stride;
}

double dot(const AttentionShape& s, const HeadsView& x, int64_t ix, const HeadsView& y, int64_t iy,
           int64_t size) {
  double sum = 0;
  for (int64_t c = 0; c < size; ++c)
    sum += load_as_double(x.data, s.dtype, ix + c) * load_as_double(y.data, s.dtype, iy + c);
  return sum;
}

/// A key that a query sees, the column of the bias between them, and its position in its sample.
struct Seen {
  int64_t key = 0, column = 0, position = 0;
};

bool sees(const AttentionShape& s, const AttentionPair& pair, int64_t i, int64_t j) {
  const int64_t distance = i - (j + pair.offset);
  if (s.window > 0 && std::abs(distance) >= s.window) return false;
  switch (s.mask) {
  case AttentionMask::kFull:
    return true;
  case AttentionMask::kPrefix:
    return j < pair.prefix || distance >= 0;
  case AttentionMask::kCausal:
    return distance >= 0;
  }
  return false;
}

/// f(query, the keys that it sees) for every query of a pair.
template <class F> void for_each_query(const AttentionShape& s, F&& f) {
  std::vector<Seen> seen;
  for (const AttentionPair& pair : s.pairs) {
    for (int64_t i = 0; i < pair.query_size; ++i) {
      seen.clear();
      for (int64_t j = 0; j < pair.key_size; ++j) {
        if (sees(s, pair, i, j))
          seen.push_back(
              {pair.key_begin + j, s.span - 1 + i - j - pair.offset, pair.key_position + j});
      }
      f(pair.query_begin + i, seen);
    }
  }
}

struct Score {
  double value = 0;
  double slope = 1; ///< of the cap
};

Score score(const AttentionShape& s, const HeadsView& q, const HeadsView& k, int64_t query,
            int64_t head, const Seen& seen) {
  const int64_t group = s.heads / s.kv_heads;
  Score x{s.scale * dot(s, q, at(q, query, head), k, at(k, seen.key, head / group), s.head_size)};
  if (s.cap > 0) {
    const double t = std::tanh(x.value / s.cap);
    x = {s.cap * t, 1 - t * t};
  }
  if (s.bias != nullptr)
    x.value += load_as_double(s.bias, statistics(s), head * (2 * s.span - 1) + seen.column);
  return x;
}

/// What dropout multiplies a probability by: 0 or 1 / (1 - p).
double dropout_factor(const AttentionShape& s, int64_t query, int64_t head, const Seen& seen) {
  const AttentionDropout& d = s.dropout;
  if (d.p == 0) return 1;
  const Dropout numbers{.p = d.p,
                        .key = d.key,
                        .site = d.site,
                        .row_ids = d.row_ids,
                        .feature_offset = d.feature(head, seen.position)};
  return dropout_keeps(numbers, query, 0) ? 1 / (1 - d.p) : 0;
}

/// Gradients of rows, summed in double.
struct Sums {
  Sums(const HeadsView& view, int64_t heads, int64_t size) : view(view), heads(heads), size(size) {}
  double* row(int64_t token, int64_t head) {
    const auto begin = static_cast<size_t>((token * heads + head) * size);
    if (begin >= sums.size()) sums.resize(static_cast<size_t>((token + 1) * heads * size));
    return sums.data() + begin;
  }
  void write(const AttentionShape& s, int64_t begin, int64_t count) {
    for (int64_t t = begin; t < begin + count; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const double* const from = row(t, h);
        for (int64_t c = 0; c < size; ++c)
          store_from_double(view.data, s.dtype, at(view, t, h) + c, from[c]);
      }
    }
  }
  HeadsView view;
  int64_t heads, size;
  std::vector<double> sums;
};

} // namespace

void attention_forward_reference(const AttentionForward& a, const Context&) {
  const AttentionShape& s = a.shape;
  const int64_t group = s.heads / s.kv_heads, e = s.head_size_of_values();
  for (int64_t h = 0; h < s.heads; ++h) {
    for_each_query(s, [&](int64_t i, const std::vector<Seen>& seen) {
      std::vector<double> p;
      double top = s.sinks ? load_as_double(s.sinks, statistics(s), h)
                           : -std::numeric_limits<double>::infinity();
      for (const Seen& key : seen) {
        p.push_back(score(s, a.q, a.k, i, h, key).value);
        top = std::max(top, p.back());
      }
      double sum = s.sinks ? std::exp(load_as_double(s.sinks, statistics(s), h) - top) : 0;
      if (a.max_logits && !seen.empty())
        store_from_double(a.max_logits, statistics(s), h,
                          std::max(top, load_as_double(a.max_logits, statistics(s), h)));
      for (double& x : p) sum += x = std::exp(x - top);
      store_from_double(a.lse, statistics(s), h * s.queries + i, top + std::log(sum));
      for (size_t j = 0; j < seen.size(); ++j) p[j] *= dropout_factor(s, i, h, seen[j]);
      for (int64_t c = 0; c < e; ++c) {
        double x = 0;
        for (size_t j = 0; j < seen.size(); ++j)
          x += p[j] * load_as_double(a.v.data, s.dtype, at(a.v, seen[j].key, h / group) + c);
        store_from_double(a.out.data, s.dtype, at(a.out, i, h) + c, sum == 0 ? 0 : x / sum);
      }
    });
  }
}

void attention_backward_reference(const AttentionBackward& a, const Context&) {
  const AttentionShape& s = a.shape;
  const DType type = statistics(s);
  const int64_t group = s.heads / s.kv_heads, d = s.head_size, e = s.head_size_of_values(),
                columns = 2 * s.span - 1;
  Sums dq(a.dq, s.heads, d), dk(a.dk, s.kv_heads, d), dv(a.dv, s.kv_heads, e);
  std::vector<double> dsinks(static_cast<size_t>(s.heads)),
      dbias(static_cast<size_t>(s.bias ? s.heads * columns : 0));
  for (int64_t h = 0; h < s.heads; ++h) {
    const int64_t g = h / group;
    for_each_query(s, [&](int64_t i, const std::vector<Seen>& seen) {
      if (seen.empty() && !s.sinks) return;
      const double lse = load_as_double(a.lse, type, h * s.queries + i);
      double delta = dot(s, a.dout, at(a.dout, i, h), a.out, at(a.out, i, h), e);
      if (a.dlse) delta -= load_as_double(a.dlse, type, h * s.queries + i);
      if (s.sinks) dsinks[h] -= std::exp(load_as_double(s.sinks, type, h) - lse) * delta;
      for (const Seen& key : seen) {
        const Score x = score(s, a.q, a.k, i, h, key);
        const double p = std::exp(x.value - lse), factor = dropout_factor(s, i, h, key);
        double ds =
            p * (factor * dot(s, a.dout, at(a.dout, i, h), a.v, at(a.v, key.key, g), e) - delta);
        if (s.bias) dbias[h * columns + key.column] += ds;
        ds *= x.slope * s.scale;
        double *const dq_row = dq.row(i, h), *const dk_row = dk.row(key.key, g),
                      *const dv_row = dv.row(key.key, g);
        for (int64_t c = 0; c < d; ++c) {
          dq_row[c] += ds * load_as_double(a.k.data, s.dtype, at(a.k, key.key, g) + c);
          dk_row[c] += ds * load_as_double(a.q.data, s.dtype, at(a.q, i, h) + c);
        }
        for (int64_t c = 0; c < e; ++c)
          dv_row[c] += p * factor * load_as_double(a.dout.data, s.dtype, at(a.dout, i, h) + c);
      }
    });
  }
  for (const AttentionPair& pair : s.pairs) {
    dq.write(s, pair.query_begin, pair.query_size);
    dk.write(s, pair.key_begin, pair.key_size);
    dv.write(s, pair.key_begin, pair.key_size);
  }
  for (int64_t h = 0; s.sinks && h < s.heads; ++h) store_from_double(a.dsinks, type, h, dsinks[h]);
  for (size_t i = 0; i < dbias.size(); ++i)
    store_from_double(a.dbias, type, static_cast<int64_t>(i), dbias[i]);
}

} // namespace pentatron::kernels
