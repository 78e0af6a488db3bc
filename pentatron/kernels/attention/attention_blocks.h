/// Attention in blocks of keys and panels of 32 queries, around the matrix products that a class
/// gives (Avx2Products, Avx512Products, TileProducts).
///
/// Products has kPair (probabilities are multiplied as bf16 pairs, else as fp32), kElement (bytes
/// of an element), kKeys (of a block) and static packing functions, named after gemm's: rows or
/// columns of the left or right operand, whose k lies along or across the rows of memory;
///   rows_size(n, k), columns_size(n, k)    32-bit units of n packed rows or columns of k elements
///   sum_rows(n), sum_columns(n)            how many a buffer of sums has for n
///   kKeyStep                               sums of keys are added to in steps of so many
///   score(key, half)                       where 16 queries of a key begin in a buffer of scores
///   multiply_keys, add_features, add_to_keys   the products
///   softmax_step, softmax_backward, row_dots, store_rows, store_transposed   between them
///   cap_scores, dropout_factors            of 16 queries
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include <omp.h>

#include "pentatron/kernels/attention/attention_panels.h"
#include "pentatron/kernels/attention/score_factors.h"
#include "pentatron/kernels/gemm/pack_buffer.h"

namespace pentatron::kernels::attention_detail {

using gemm_detail::PackBuffer;

constexpr float kLog2e = std::numbers::log2e_v<float>;

/// Hands out pieces of a buffer, or only counts them.
class Cutter {
 public:
  explicit Cutter(std::byte* data) : data_(data) {}
  template <class T> T* take(int64_t count) {
    std::byte* const p = data_ == nullptr ? nullptr : data_ + used_;
    used_ +=
        (count * static_cast<int64_t>(sizeof(T)) + 127) / 64 * 64; // room for a vector past the end
    return reinterpret_cast<T*>(p);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* data_;
  int64_t used_ = 0;
};

template <class Products> class Attention {
 public:
  static constexpr bool kPair = Products::kPair;
  static constexpr int64_t kElement = Products::kElement;
  static constexpr int64_t kKeys = Products::kKeys;

  explicit Attention(const AttentionShape& shape)
      : s_(shape), sinks_(static_cast<const float*>(shape.sinks)), d_(shape.head_size),
        e_(shape.head_size_of_values()), group_(shape.heads / shape.kv_heads) {
    for (const AttentionPair& pair : s_.pairs) longest_ = std::max(longest_, pair.key_size);
  }

  void forward(const AttentionForward& args) const;
  void backward(const AttentionBackward& args) const;

 private:
  /// A key-value head of a pair, and in the forward some of its queries.
  struct Task {
    size_t pair = 0;
    int64_t kv_head = 0;
    int64_t begin = 0; // queries, from the first of the pair
    int64_t end = 0;
  };
  /// What a pair adds to the gradients of the sinks and of the bias, head by head.
  struct Partial {
    std::vector<double> sinks, bias;
  };
  struct ForwardBuffers {
    explicit ForwardBuffers(Cutter& cut, int64_t longest, int64_t d, int64_t e)
        : k(cut.take<uint32_t>(Products::rows_size(longest, d))),
          v(cut.take<uint32_t>(Products::rows_size(e, longest))),
          q(cut.take<uint32_t>(Products::columns_size(kQueries, d))),
          scores(cut.take<float>(kKeys * kQueries)), keep(cut.take<float>(kKeys * kQueries)),
          probabilities(cut.take<uint32_t>(kKeys * kQueries)),
          out(cut.take<float>(Products::sum_rows(e) * kQueries)) {}
    uint32_t *k, *v, *q;
    float *scores, *keep;
    uint32_t* probabilities;
    float* out;
  };
  struct BackwardBuffers {
    explicit BackwardBuffers(Cutter& cut, int64_t longest, int64_t d, int64_t e)
        : k(cut.take<uint32_t>(Products::rows_size(longest, d))),
          v(cut.take<uint32_t>(Products::rows_size(longest, e))),
          k_across(cut.take<uint32_t>(Products::rows_size(d, longest))),
          dk(cut.take<float>(Products::sum_rows(longest) * Products::sum_columns(d))),
          dv(cut.take<float>(Products::sum_rows(longest) * Products::sum_columns(e))),
          q(cut.take<uint32_t>(kPanels * Products::columns_size(kQueries, d))),
          dout(cut.take<uint32_t>(kPanels * Products::columns_size(kQueries, e))),
          q_across(cut.take<uint32_t>(Products::columns_size(d, kPanels * kQueries))),
          dout_across(cut.take<uint32_t>(Products::columns_size(e, kPanels * kQueries))),
          dq(cut.take<float>(kPanels * Products::sum_rows(d) * kQueries)),
          p(cut.take<float>(kPanels * kKeys * kQueries)),
          ds(cut.take<float>(kPanels * kKeys * kQueries)),
          p16(cut.take<uint16_t>(kPanels * kKeys * kQueries)),
          ds16(cut.take<uint16_t>(kPanels * kKeys * kQueries)),
          keep(cut.take<float>(kKeys * kQueries)), slope(cut.take<float>(kKeys * kQueries)),
          pairs(cut.take<uint32_t>(kKeys * kQueries)),
          packed(cut.take<uint32_t>(kKeys * kPanels * kQueries)) {}
    uint32_t *k, *v, *k_across;
    float *dk, *dv;
    uint32_t *q, *dout, *q_across, *dout_across;
    float *dq, *p, *ds;
    uint16_t *p16, *ds16;
    float *keep, *slope;
    uint32_t *pairs, *packed;
  };

  const char* at(const HeadsView& x, int64_t token, int64_t head) const {
    return static_cast<const char*>(x.data) +
           (token * x.token_stride + head * x.head_stride) * kElement;
  }
  char* out_at(const HeadsView& x, int64_t token, int64_t head) const {
    return static_cast<char*>(x.data) + (token * x.token_stride + head * x.head_stride) * kElement;
  }
  /// Of `count` queries, the first number `query` of the pair.
  Visibility visibility(const AttentionPair& pair, int64_t query, int count) const {
    const int64_t open = s_.mask == AttentionMask::kFull     ? pair.key_size
                         : s_.mask == AttentionMask::kPrefix ? pair.prefix
                                                             : 0;
    return {query - pair.offset, s_.window, count, open};
  }
  /// Where the blocks of keys begin that the queries from `query` on see.
  int64_t first_block(const AttentionPair& pair, int64_t query) const {
    return std::min(visibility(pair, query, 1).first_key(), pair.key_size) / kKeys * kKeys;
  }
  int64_t last_key(const AttentionPair& pair, int64_t query, int64_t count) const {
    return visibility(pair, query, static_cast<int>(count)).end_key(pair.key_size);
  }

  template <class Buffers, class F> void run_tasks(const std::vector<Task>& tasks, F&& f) const {
    Cutter counter(nullptr);
    Buffers count(counter, longest_, d_, e_);
    const int64_t each = (counter.used() + 4095) / 4096 * 4096 + 256;
    const int threads =
        omp_in_parallel() ? 1
                          : static_cast<int>(std::clamp<int64_t>(static_cast<int64_t>(tasks.size()),
                                                                 1, num_threads()));
    const PackBuffer buffer(static_cast<size_t>(each * threads));
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
      Cutter cut(buffer.data() + each * omp_get_thread_num() * (threads > 1));
      Buffers mine(cut, longest_, d_, e_);
      Products products;
#pragma omp for schedule(dynamic, 1)
      for (size_t i = 0; i < tasks.size(); ++i) f(tasks[i], products, mine);
    }
  }

  void add_bias(const Visibility& visible, int64_t head, int64_t key, int64_t keys,
                float* scores) const;
  /// Caps scores and writes the slopes, if wanted. Scores are multiplied by the scale later.
  void cap(int64_t keys, float* scores, float* slopes) const {
    if (s_.cap == 0) return;
    for (int half = 0; half < 2; ++half) {
      const int64_t first = Products::score(0, half);
      Products::cap_scores({.scores = scores + first,
                            .slopes = slopes == nullptr ? nullptr : slopes + first,
                            .keys = keys,
                            .stride = Products::score(1, half) - first,
                            .to_ratio = static_cast<float>(s_.scale / s_.cap),
                            .cap = static_cast<float>(s_.cap / s_.scale)});
    }
  }
  /// The factors of dropout of keys [key, key + keys) for `count` queries from `query` of the pair
  /// on; null: there is none.
  const float* dropout(const AttentionPair& pair, int64_t head, int64_t query, int count,
                       int64_t key, int64_t keys, float* factors) const {
    const AttentionDropout& d = s_.dropout;
    if (d.p == 0) return nullptr;
    for (int half = 0; half < 2; ++half) {
      const int64_t first = Products::score(0, half);
      Products::dropout_factors(
          {.row_ids = d.row_ids + pair.query_begin + query + std::min(16 * half, count),
           .queries = std::clamp(count - 16 * half, 0, 16),
           .key = d.key,
           .site = d.site,
           .threshold = static_cast<uint32_t>(dropout_threshold(d.p)),
           .factor = static_cast<float>(1 / (1 - d.p)),
           .feature = d.feature(head, pair.key_position + key),
           .keys = keys,
           .to = factors + first,
           .stride = Products::score(1, half) - first});
    }
    return factors;
  }
  template <class T>
  void sum_bias(const Visibility& visible, int64_t key, int64_t keys, const T* ds,
                double* dbias) const;
  /// `most`: of the group's heads, raised to their largest scores.
  void forward_task(const AttentionForward& args, const Task& task, Products& products,
                    ForwardBuffers& b, float* most) const;
  void backward_task(const AttentionBackward& args, const Task& task, Products& products,
                     BackwardBuffers& b, Partial& partial) const;
  void backward_queries(const AttentionBackward& args, const Task& task, Products& products,
                        int64_t head, int64_t query, int64_t count, BackwardBuffers& b,
                        Partial& partial) const;

  const AttentionShape& s_;
  const float* sinks_;
  int64_t d_, e_;
  int64_t group_;
  int64_t longest_ = 0;
};

/// Adds the bias to scores of keys [key, key + keys), which are multiplied by the scale later.
template <class Products>
void Attention<Products>::add_bias(const Visibility& visible, int64_t head, int64_t key,
                                   int64_t keys, float* scores) const {
  const int64_t columns = 2 * s_.span - 1, first = s_.span - 1 + visible.query - key - (keys - 1);
  const float* const row = static_cast<const float*>(s_.bias) + head * columns;
  const float by = 1.0F / static_cast<float>(s_.scale);
  std::array<float, kKeys + kQueries> near; // from the last key to the first; 0: nobody's
  for (int64_t c = 0; c < keys - 1 + kQueries; ++c)
    near[c] = first + c >= 0 && first + c < columns ? row[first + c] * by : 0;
  for (int64_t r = 0; r < keys; ++r) {
    for (int half = 0; half < 2; ++half) {
      float* const to = scores + Products::score(r, half);
      const float* const from = near.data() + (keys - 1 - r) + 16 * half;
      for (int i = 0; i < 16; ++i) to[i] += from[i];
    }
  }
}

inline float widened(float x) {
  return x;
}
inline float widened(uint16_t x) { // bf16
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

/// Adds gradients of scores, which have been multiplied by the scale, to that of the bias.
template <class Products>
template <class T>
void Attention<Products>::sum_bias(const Visibility& visible, int64_t key, int64_t keys,
                                   const T* ds, double* dbias) const {
  const int64_t columns = 2 * s_.span - 1, first = s_.span - 1 + visible.query - key - (keys - 1);
  std::array<float, kKeys + kQueries> near{};
  for (int64_t r = 0; r < keys; ++r) {
    for (int half = 0; half < 2; ++half) {
      const T* const from = ds + Products::score(r, half);
      float* const to = near.data() + (keys - 1 - r) + 16 * half;
      for (int i = 0; i < 16; ++i) to[i] += widened(from[i]);
    }
  }
  for (int64_t c = std::max<int64_t>(0, -first); c < keys - 1 + kQueries && first + c < columns;
       ++c)
    dbias[first + c] += static_cast<double>(near[c]) / s_.scale;
}

template <class Products> void Attention<Products>::forward(const AttentionForward& args) const {
  const auto pairs = static_cast<int64_t>(s_.pairs.size());
  // More tasks than threads; how queries are grouped into tasks does not change results.
  const int64_t parts = ceil_div(4 * num_threads(), std::max<int64_t>(1, pairs * s_.kv_heads));
  std::vector<Task> tasks;
  for (size_t i = 0; i < s_.pairs.size(); ++i) {
    const int64_t length = s_.pairs[i].query_size;
    const int64_t step =
        std::max<int64_t>(8, ceil_div(ceil_div(length, kQueries), parts)) * kQueries;
    for (int64_t g = 0; g < s_.kv_heads; ++g) {
      for (int64_t q = 0; q < length; q += step)
        tasks.push_back({i, g, q, std::min(length, q + step)});
    }
  }
  std::vector<float> most(tasks.size() * static_cast<size_t>(group_),
                          -std::numeric_limits<float>::infinity());
  const auto most_of = [&](const Task& task) {
    return most.data() + (&task - tasks.data()) * group_;
  };
  run_tasks<ForwardBuffers>(tasks, [&](const Task& task, Products& products, ForwardBuffers& b) {
    forward_task(args, task, products, b, most_of(task));
  });
  if (args.max_logits == nullptr) return;
  for (const Task& task : tasks) {
    float* const to = static_cast<float*>(args.max_logits) + task.kv_head * group_;
    for (int64_t i = 0; i < group_; ++i)
      to[i] = std::max(to[i], most_of(task)[i] * static_cast<float>(s_.scale));
  }
}

template <class Products>
void Attention<Products>::forward_task(const AttentionForward& args, const Task& task,
                                       Products& products, ForwardBuffers& b, float* most) const {
  const AttentionPair& pair = s_.pairs[task.pair];
  const int64_t token = pair.query_begin, from = first_block(pair, task.begin),
                packed = last_key(pair, task.begin, task.end - task.begin) - from;
  if (packed > 0) {
    const int64_t first = pair.key_begin + from;
    Products::pack_rows_along(at(args.k, first, task.kv_head), args.k.token_stride, d_, packed,
                              b.k);
    Products::pack_rows_across(at(args.v, first, task.kv_head), args.v.token_stride, packed, e_,
                               b.v);
  }
  const float factor = static_cast<float>(s_.scale) * kLog2e;
  for (int64_t head = task.kv_head * group_; head < (task.kv_head + 1) * group_; ++head) {
    for (int64_t query = task.begin; query < task.end; query += kQueries) {
      const int count = static_cast<int>(std::min<int64_t>(kQueries, task.end - query));
      const Visibility visible = visibility(pair, query, count);
      const int64_t end = visible.end_key(pair.key_size);
      std::array<float, kQueries> top, sum;
      top.fill(sinks_ != nullptr ? sinks_[head] / static_cast<float>(s_.scale)
                                 : -std::numeric_limits<float>::infinity());
      sum.fill(sinks_ != nullptr ? 1.0F : 0.0F);
      std::fill_n(b.out, Products::sum_rows(e_) * kQueries, 0.0F);
      Products::pack_columns_along(at(args.q, token + query, head), args.q.token_stride, d_, count,
                                   b.q);
      for (int64_t key = first_block(pair, query); key < end; key += kKeys) {
        const int64_t keys = std::min(kKeys, end - key);
        products.multiply_keys(b.k, key - from, keys, packed, d_, b.q, b.scores);
        cap(keys, b.scores, nullptr);
        if (s_.bias != nullptr) add_bias(visible, head, key, keys, b.scores);
        const ScoreFactors factors{.keep = dropout(pair, head, query, count, key, keys, b.keep)};
        Products::softmax_step(b.scores, keys, key, visible, factor, factors, top.data(),
                               sum.data(), b.out, e_, b.probabilities);
        products.add_features(b.v, key - from, keys, packed, e_,
                              kPair ? b.probabilities : reinterpret_cast<uint32_t*>(b.scores),
                              b.out);
      }
      for (int i = 0; i < count; ++i) {
        static_cast<float*>(args.lse)[head * s_.queries + token + query + i] =
            top[i] * static_cast<float>(s_.scale) + std::log(sum[i]);
        float& largest = most[head - task.kv_head * group_];
        largest = std::max(largest, top[i]);
      }
      for (float& x : sum) x = x == 0 ? 0 : 1.0F / x; // 0: no key is seen
      Products::store_transposed(b.out, e_, sum.data(), count,
                                 out_at(args.out, token + query, head), args.out.token_stride);
    }
  }
}

template <class Products> void Attention<Products>::backward(const AttentionBackward& args) const {
  std::vector<Partial> partial(s_.pairs.size());
  std::vector<Task> tasks;
  for (size_t i = 0; i < s_.pairs.size(); ++i) {
    const AttentionPair& pair = s_.pairs[i];
    partial[i].sinks.resize(static_cast<size_t>(s_.heads));
    if (s_.bias != nullptr)
      partial[i].bias.resize(static_cast<size_t>(s_.heads * (2 * s_.span - 1)));
    for (int64_t g = 0; g < s_.kv_heads && pair.query_size + pair.key_size > 0; ++g)
      tasks.push_back({i, g, 0, pair.query_size});
  }
  run_tasks<BackwardBuffers>(tasks, [&](const Task& task, Products& products, BackwardBuffers& b) {
    backward_task(args, task, products, b, partial[task.pair]);
  });
  const auto write = [&](void* to, std::vector<double> Partial::*which, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
      double sum = 0;
      for (const Partial& one : partial) sum += (one.*which)[static_cast<size_t>(i)];
      static_cast<float*>(to)[i] = static_cast<float>(sum);
    }
  };
  if (s_.sinks != nullptr) write(args.dsinks, &Partial::sinks, s_.heads);
  if (s_.bias != nullptr) write(args.dbias, &Partial::bias, s_.heads * (2 * s_.span - 1));
}

template <class Products>
void Attention<Products>::backward_task(const AttentionBackward& args, const Task& task,
                                        Products& products, BackwardBuffers& b,
                                        Partial& partial) const {
  const AttentionPair& pair = s_.pairs[task.pair];
  const int64_t token = pair.key_begin, length = pair.key_size;
  const int64_t k_width = Products::sum_columns(d_), v_width = Products::sum_columns(e_);
  const char *const k = at(args.k, token, task.kv_head), *const v = at(args.v, token, task.kv_head);
  Products::pack_rows_along(k, args.k.token_stride, d_, length, b.k);
  Products::pack_rows_along(v, args.v.token_stride, e_, length, b.v);
  Products::pack_rows_across(k, args.k.token_stride, length, d_, b.k_across);
  std::fill_n(b.dk, Products::sum_rows(length) * k_width, 0.0F);
  std::fill_n(b.dv, Products::sum_rows(length) * v_width, 0.0F);
  for (int64_t head = task.kv_head * group_; head < (task.kv_head + 1) * group_; ++head) {
    for (int64_t query = 0; query < task.end; query += kPanels * kQueries) {
      backward_queries(args, task, products, head, query,
                       std::min(kPanels * kQueries, task.end - query), b, partial);
    }
  }
  Products::store_rows(b.dk, k_width, length, d_, out_at(args.dk, token, task.kv_head),
                       args.dk.token_stride);
  Products::store_rows(b.dv, v_width, length, e_, out_at(args.dv, token, task.kv_head),
                       args.dv.token_stride);
}

/// Up to 128 queries of a head against all keys they see.
template <class Products>
void Attention<Products>::backward_queries(const AttentionBackward& args, const Task& task,
                                           Products& products, int64_t head, int64_t query,
                                           int64_t count, BackwardBuffers& b,
                                           Partial& partial) const {
  const AttentionPair& pair = s_.pairs[task.pair];
  const int64_t token = pair.query_begin, length = pair.key_size;
  const float scale = static_cast<float>(s_.scale), factor = scale * kLog2e;
  std::array<float, kPanels * kQueries> lse{}, delta{};
  Products::row_dots(at(args.out, token + query, head), args.out.token_stride,
                     at(args.dout, token + query, head), args.dout.token_stride, count, e_,
                     delta.data());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = head * s_.queries + token + query + i;
    const float natural = static_cast<const float*>(args.lse)[row];
    lse[i] = natural * kLog2e;
    if (args.dlse != nullptr && std::isfinite(natural))
      delta[i] -= static_cast<const float*>(args.dlse)[row];
    if (sinks_ != nullptr) partial.sinks[head] -= std::exp(sinks_[head] - natural) * delta[i];
  }
  const int64_t panels = ceil_div(count, kQueries);
  const auto panel_size = [&](int64_t p) {
    return static_cast<int>(std::min<int64_t>(kQueries, count - p * kQueries));
  };
  const char *const q = at(args.q, token + query, head), *const dout =
                                                             at(args.dout, token + query, head);
  const int64_t q_row = args.q.token_stride, dout_row = args.dout.token_stride;
  const int64_t panel_units = Products::columns_size(kQueries, d_),
                dout_units = Products::columns_size(kQueries, e_),
                dq_panel = Products::sum_rows(d_) * kQueries;
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t skipped = p * kQueries * kElement;
    Products::pack_columns_along(q + skipped * q_row, q_row, d_, panel_size(p),
                                 b.q + p * panel_units);
    Products::pack_columns_along(dout + skipped * dout_row, dout_row, e_, panel_size(p),
                                 b.dout + p * dout_units);
  }
  Products::pack_columns_across(q, q_row, count, d_, b.q_across);
  Products::pack_columns_across(dout, dout_row, count, e_, b.dout_across);
  std::fill_n(b.dq, panels * dq_panel, 0.0F);

  const int64_t end = std::min(length, round_up(last_key(pair, query, count), Products::kKeyStep));
  for (int64_t key = first_block(pair, query); key < end; key += kKeys) {
    const int64_t keys = std::min(kKeys, end - key);
    int64_t first = panels, last = 0; // the panels that see something of the block
    for (int64_t p = 0; p < panels; ++p) {
      const Visibility visible = visibility(pair, query + p * kQueries, panel_size(p));
      if (visible.end_key(length) <= key || visible.first_key() >= key + keys) continue;
      first = std::min(first, p);
      last = p + 1;
      float* const s = b.p + p * kKeys * kQueries;
      float* const dp = b.ds + p * kKeys * kQueries;
      uint16_t* const ds16 = b.ds16 + p * kKeys * kQueries;
      products.multiply_keys(b.k, key, keys, length, d_, b.q + p * panel_units, s);
      cap(keys, s, b.slope);
      if (s_.bias != nullptr) add_bias(visible, head, key, keys, s);
      products.multiply_keys(b.v, key, keys, length, e_, b.dout + p * dout_units, dp);
      const ScoreFactors factors{
          .keep = dropout(pair, head, query + p * kQueries, panel_size(p), key, keys, b.keep),
          .slope = s_.cap == 0 ? nullptr : b.slope};
      Products::softmax_backward(s, dp, keys, key, visible, factor, scale, factors,
                                 lse.data() + p * kQueries, delta.data() + p * kQueries,
                                 b.p16 + p * kKeys * kQueries, ds16, b.pairs);
      if (s_.bias != nullptr) {
        double* const dbias = partial.bias.data() + head * (2 * s_.span - 1);
        if constexpr (kPair) {
          sum_bias(visible, key, keys, ds16, dbias);
        } else {
          sum_bias(visible, key, keys, dp, dbias);
        }
      }
      products.add_features(b.k_across, key, keys, length, d_,
                            kPair ? b.pairs : reinterpret_cast<uint32_t*>(dp), b.dq + p * dq_panel);
    }
    if (first >= last) continue;
    const QueryRange range{first, last, count};
    products.add_to_keys(kPair ? static_cast<const void*>(b.p16) : b.p, b.dout_across, range, keys,
                         e_, b.packed, b.dv + key * Products::sum_columns(e_));
    products.add_to_keys(kPair ? static_cast<const void*>(b.ds16) : b.ds, b.q_across, range, keys,
                         d_, b.packed, b.dk + key * Products::sum_columns(d_));
  }
  std::array<float, kQueries> one;
  one.fill(1.0F);
  for (int64_t p = 0; p < panels; ++p) {
    Products::store_transposed(b.dq + p * dq_panel, d_, one.data(), panel_size(p),
                               out_at(args.dq, token + query + p * kQueries, head),
                               args.dq.token_stride);
  }
}

/// The forward and the backward of an entry.
template <class Products> void run_forward(const AttentionForward& args) {
  Attention<Products>(args.shape).forward(args);
}
template <class Products> void run_backward(const AttentionBackward& args) {
  Attention<Products>(args.shape).backward(args);
}

} // namespace pentatron::kernels::attention_detail
