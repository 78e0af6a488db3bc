/// Attention in blocks of keys and panels of 32 queries, around the matrix products that a class
/// gives (Avx2Products, Avx512Products, TileProducts).
///
/// Products has kPair (probabilities are multiplied as bf16 pairs, else as fp32), kElement (bytes
/// of an element), kKeys (of a block) and static packing functions, named after gemm's: rows or
/// columns of the left or right operand, whose k lies along or across the rows of memory;
///   rows_size(n, k), columns_size(n, k)    32-bit units of n packed rows or columns of k elements
///   sum_rows(n), sum_columns(n)            how many a buffer of sums has for n
///   multiply_keys, add_features, add_to_keys   the products
///   softmax_step, softmax_backward, row_dots, store_rows, store_transposed   between them
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include <omp.h>

#include "pentatron/kernels/attention/attention_panels.h"
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
        group_(shape.heads / shape.kv_heads) {
    for (size_t i = 0; i + 1 < s_.documents.size(); ++i)
      longest_ = std::max(longest_, s_.documents[i + 1] - s_.documents[i]);
  }

  void forward(const AttentionForward& args) const;
  void backward(const AttentionBackward& args, std::vector<double>& dsinks) const;

 private:
  /// A key-value head of a document, and in the forward some of its queries.
  struct Task {
    int64_t document = 0;
    int64_t kv_head = 0;
    int64_t begin = 0; // queries, from the start of the document
    int64_t end = 0;
  };
  struct ForwardBuffers {
    explicit ForwardBuffers(Cutter& cut, int64_t longest, int64_t d)
        : k(cut.take<uint32_t>(Products::rows_size(longest, d))),
          v(cut.take<uint32_t>(Products::rows_size(d, longest))),
          q(cut.take<uint32_t>(Products::columns_size(kQueries, d))),
          scores(cut.take<float>(kKeys * kQueries)),
          probabilities(cut.take<uint32_t>(kKeys * kQueries)),
          out(cut.take<float>(Products::sum_rows(d) * kQueries)) {}
    uint32_t *k, *v, *q;
    float* scores;
    uint32_t* probabilities;
    float* out;
  };
  struct BackwardBuffers {
    explicit BackwardBuffers(Cutter& cut, int64_t longest, int64_t d)
        : k(cut.take<uint32_t>(Products::rows_size(longest, d))),
          v(cut.take<uint32_t>(Products::rows_size(longest, d))),
          k_across(cut.take<uint32_t>(Products::rows_size(d, longest))),
          dk(cut.take<float>(Products::sum_rows(longest) * Products::sum_columns(d))),
          dv(cut.take<float>(Products::sum_rows(longest) * Products::sum_columns(d))),
          q(cut.take<uint32_t>(kPanels * Products::columns_size(kQueries, d))),
          dout(cut.take<uint32_t>(kPanels * Products::columns_size(kQueries, d))),
          q_across(cut.take<uint32_t>(Products::columns_size(d, kPanels * kQueries))),
          dout_across(cut.take<uint32_t>(Products::columns_size(d, kPanels * kQueries))),
          dq(cut.take<float>(kPanels * Products::sum_rows(d) * kQueries)),
          p(cut.take<float>(kPanels * kKeys * kQueries)),
          ds(cut.take<float>(kPanels * kKeys * kQueries)),
          p16(cut.take<uint16_t>(kPanels * kKeys * kQueries)),
          ds16(cut.take<uint16_t>(kPanels * kKeys * kQueries)),
          pairs(cut.take<uint32_t>(kKeys * kQueries)),
          packed(cut.take<uint32_t>(kKeys * kPanels * kQueries)) {}
    uint32_t *k, *v, *k_across;
    float *dk, *dv;
    uint32_t *q, *dout, *q_across, *dout_across;
    float *dq, *p, *ds;
    uint16_t *p16, *ds16;
    uint32_t *pairs, *packed;
  };

  const char* at(const HeadsView& x, int64_t token, int64_t head) const {
    return static_cast<const char*>(x.data) +
           (token * x.token_stride + head * x.head_stride) * kElement;
  }
  char* out_at(const HeadsView& x, int64_t token, int64_t head) const {
    return static_cast<char*>(x.data) + (token * x.token_stride + head * x.head_stride) * kElement;
  }
  int64_t first_visible(int64_t query) const {
    return s_.window > 0 ? std::max<int64_t>(0, query - s_.window + 1) : 0;
  }

  template <class Buffers, class F> void run_tasks(const std::vector<Task>& tasks, F&& f) const {
    Cutter counter(nullptr);
    Buffers count(counter, longest_, d_);
    const int64_t each = (counter.used() + 4095) / 4096 * 4096 + 256;
    const int threads =
        omp_in_parallel() ? 1
                          : static_cast<int>(std::clamp<int64_t>(static_cast<int64_t>(tasks.size()),
                                                                 1, num_threads()));
    const PackBuffer buffer(static_cast<size_t>(each * threads));
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
      Cutter cut(buffer.data() + each * omp_get_thread_num() * (threads > 1));
      Buffers mine(cut, longest_, d_);
      Products products;
#pragma omp for schedule(dynamic, 1)
      for (size_t i = 0; i < tasks.size(); ++i) f(tasks[i], products, mine);
    }
  }

  void forward_task(const AttentionForward& args, const Task& task, Products& products,
                    ForwardBuffers& b) const;
  void backward_task(const AttentionBackward& args, const Task& task, Products& products,
                     BackwardBuffers& b, double* dsinks) const;
  void backward_queries(const AttentionBackward& args, const Task& task, Products& products,
                        int64_t head, int64_t query, int64_t count, BackwardBuffers& b,
                        double* dsink) const;

  const AttentionShape& s_;
  const float* sinks_;
  int64_t d_;
  int64_t group_;
  int64_t longest_ = 0;
};

template <class Products> void Attention<Products>::forward(const AttentionForward& args) const {
  const auto documents = static_cast<int64_t>(s_.documents.size()) - 1;
  // More tasks than threads; how queries are grouped into tasks does not change results.
  const int64_t parts = ceil_div(4 * num_threads(), std::max<int64_t>(1, documents * s_.kv_heads));
  std::vector<Task> tasks;
  for (int64_t i = 0; i < documents; ++i) {
    const int64_t length = s_.documents[i + 1] - s_.documents[i];
    const int64_t step =
        std::max<int64_t>(8, ceil_div(ceil_div(length, kQueries), parts)) * kQueries;
    for (int64_t g = 0; g < s_.kv_heads; ++g) {
      for (int64_t q = 0; q < length; q += step)
        tasks.push_back({i, g, q, std::min(length, q + step)});
    }
  }
  run_tasks<ForwardBuffers>(tasks, [&](const Task& task, Products& products, ForwardBuffers& b) {
    forward_task(args, task, products, b);
  });
}

template <class Products>
void Attention<Products>::forward_task(const AttentionForward& args, const Task& task,
                                       Products& products, ForwardBuffers& b) const {
  const int64_t token = s_.documents[task.document], tokens = s_.documents.back();
  const int64_t from = first_visible(task.begin) / kKeys * kKeys, packed = task.end - from;
  Products::pack_rows_along(at(args.k, token + from, task.kv_head), args.k.token_stride, d_, packed,
                            b.k);
  Products::pack_rows_across(at(args.v, token + from, task.kv_head), args.v.token_stride, packed,
                             d_, b.v);
  const float factor = static_cast<float>(s_.scale) * kLog2e;
  for (int64_t head = task.kv_head * group_; head < (task.kv_head + 1) * group_; ++head) {
    for (int64_t query = task.begin; query < task.end; query += kQueries) {
      const int count = static_cast<int>(std::min<int64_t>(kQueries, task.end - query));
      const Visibility visible{query, s_.window, count};
      std::array<float, kQueries> top, sum;
      top.fill(sinks_ != nullptr ? sinks_[head] / static_cast<float>(s_.scale)
                                 : -std::numeric_limits<float>::infinity());
      sum.fill(sinks_ != nullptr ? 1.0F : 0.0F);
      std::fill_n(b.out, Products::sum_rows(d_) * kQueries, 0.0F);
      Products::pack_columns_along(at(args.q, token + query, head), args.q.token_stride, d_, count,
                                   b.q);
      for (int64_t key = first_visible(query) / kKeys * kKeys; key < query + count; key += kKeys) {
        const int64_t keys = std::min(kKeys, query + count - key);
        products.multiply_keys(b.k, key - from, keys, packed, d_, b.q, b.scores);
        Products::softmax_step(b.scores, keys, key, visible, factor, top.data(), sum.data(), b.out,
                               d_, b.probabilities);
        products.add_features(b.v, key - from, keys, packed, d_,
                              kPair ? b.probabilities : reinterpret_cast<uint32_t*>(b.scores),
                              b.out);
      }
      for (int i = 0; i < count; ++i) {
        static_cast<float*>(args.lse)[head * tokens + token + query + i] =
            top[i] * static_cast<float>(s_.scale) + std::log(sum[i]);
      }
      for (float& x : sum) x = 1.0F / x;
      Products::store_transposed(b.out, d_, sum.data(), count,
                                 out_at(args.out, token + query, head), args.out.token_stride);
    }
  }
}

template <class Products>
void Attention<Products>::backward(const AttentionBackward& args,
                                   std::vector<double>& dsinks) const {
  const auto documents = static_cast<int64_t>(s_.documents.size()) - 1;
  std::vector<double> partial(static_cast<size_t>(documents * s_.heads));
  std::vector<Task> tasks;
  for (int64_t i = 0; i < documents; ++i) {
    const int64_t length = s_.documents[i + 1] - s_.documents[i];
    for (int64_t g = 0; g < s_.kv_heads && length > 0; ++g) tasks.push_back({i, g, 0, length});
  }
  run_tasks<BackwardBuffers>(tasks, [&](const Task& task, Products& products, BackwardBuffers& b) {
    backward_task(args, task, products, b, partial.data() + task.document * s_.heads);
  });
  for (size_t i = 0; i < partial.size(); ++i) dsinks[i % dsinks.size()] += partial[i];
}

template <class Products>
void Attention<Products>::backward_task(const AttentionBackward& args, const Task& task,
                                        Products& products, BackwardBuffers& b,
                                        double* dsinks) const {
  const int64_t token = s_.documents[task.document], length = task.end;
  const int64_t width = Products::sum_columns(d_);
  const char *const k = at(args.k, token, task.kv_head), *const v = at(args.v, token, task.kv_head);
  Products::pack_rows_along(k, args.k.token_stride, d_, length, b.k);
  Products::pack_rows_along(v, args.v.token_stride, d_, length, b.v);
  Products::pack_rows_across(k, args.k.token_stride, length, d_, b.k_across);
  std::fill_n(b.dk, Products::sum_rows(length) * width, 0.0F);
  std::fill_n(b.dv, Products::sum_rows(length) * width, 0.0F);
  for (int64_t head = task.kv_head * group_; head < (task.kv_head + 1) * group_; ++head) {
    for (int64_t query = 0; query < length; query += kPanels * kQueries) {
      backward_queries(args, task, products, head, query,
                       std::min(kPanels * kQueries, length - query), b, dsinks + head);
    }
  }
  Products::store_rows(b.dk, width, length, d_, out_at(args.dk, token, task.kv_head),
                       args.dk.token_stride);
  Products::store_rows(b.dv, width, length, d_, out_at(args.dv, token, task.kv_head),
                       args.dv.token_stride);
}

/// Up to 128 queries of a head against all keys they see.
template <class Products>
void Attention<Products>::backward_queries(const AttentionBackward& args, const Task& task,
                                           Products& products, int64_t head, int64_t query,
                                           int64_t count, BackwardBuffers& b, double* dsink) const {
  const int64_t token = s_.documents[task.document], tokens = s_.documents.back(),
                length = task.end;
  const float scale = static_cast<float>(s_.scale), factor = scale * kLog2e;
  std::array<float, kPanels * kQueries> lse{}, delta{};
  Products::row_dots(at(args.out, token + query, head), args.out.token_stride,
                     at(args.dout, token + query, head), args.dout.token_stride, count, d_,
                     delta.data());
  for (int64_t i = 0; i < count; ++i) {
    const float natural = static_cast<const float*>(args.lse)[head * tokens + token + query + i];
    lse[i] = natural * kLog2e;
    if (sinks_ != nullptr) *dsink -= std::exp(sinks_[head] - natural) * delta[i];
  }
  const int64_t panels = ceil_div(count, kQueries);
  const auto panel_size = [&](int64_t p) {
    return static_cast<int>(std::min<int64_t>(kQueries, count - p * kQueries));
  };
  const char *const q = at(args.q, token + query, head), *const dout =
                                                             at(args.dout, token + query, head);
  const int64_t q_row = args.q.token_stride, dout_row = args.dout.token_stride;
  const int64_t panel_units = Products::columns_size(kQueries, d_),
                dq_panel = Products::sum_rows(d_) * kQueries;
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t skipped = p * kQueries * kElement;
    Products::pack_columns_along(q + skipped * q_row, q_row, d_, panel_size(p),
                                 b.q + p * panel_units);
    Products::pack_columns_along(dout + skipped * dout_row, dout_row, d_, panel_size(p),
                                 b.dout + p * panel_units);
  }
  Products::pack_columns_across(q, q_row, count, d_, b.q_across);
  Products::pack_columns_across(dout, dout_row, count, d_, b.dout_across);
  std::fill_n(b.dq, panels * dq_panel, 0.0F);

  for (int64_t key = first_visible(query) / kKeys * kKeys; key < query + count; key += kKeys) {
    const int64_t keys = std::min(kKeys, query + count - key);
    int64_t first = panels, last = 0; // the panels that see something of the block
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t q0 = query + p * kQueries;
      if (q0 + panel_size(p) <= key || first_visible(q0) >= key + keys) continue;
      first = std::min(first, p);
      last = p + 1;
      float* const s = b.p + p * kKeys * kQueries;
      float* const dp = b.ds + p * kKeys * kQueries;
      products.multiply_keys(b.k, key, keys, length, d_, b.q + p * panel_units, s);
      products.multiply_keys(b.v, key, keys, length, d_, b.dout + p * panel_units, dp);
      Products::softmax_backward(s, dp, keys, key, {q0, s_.window, panel_size(p)}, factor, scale,
                                 lse.data() + p * kQueries, delta.data() + p * kQueries,
                                 b.p16 + p * kKeys * kQueries, b.ds16 + p * kKeys * kQueries,
                                 b.pairs);
      products.add_features(b.k_across, key, keys, length, d_,
                            kPair ? b.pairs : reinterpret_cast<uint32_t*>(dp), b.dq + p * dq_panel);
    }
    if (first >= last) continue;
    const QueryRange range{first, last, count};
    const int64_t at_key = key * Products::sum_columns(d_);
    products.add_to_keys(kPair ? static_cast<const void*>(b.p16) : b.p, b.dout_across, range, keys,
                         d_, b.packed, b.dv + at_key);
    products.add_to_keys(kPair ? static_cast<const void*>(b.ds16) : b.ds, b.q_across, range, keys,
                         d_, b.packed, b.dk + at_key);
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
  std::vector<double> dsinks(static_cast<size_t>(args.shape.heads));
  Attention<Products>(args.shape).backward(args, dsinks);
  if (args.shape.sinks != nullptr)
    std::copy(dsinks.begin(), dsinks.end(), static_cast<float*>(args.dsinks));
}

} // namespace pentatron::kernels::attention_detail
