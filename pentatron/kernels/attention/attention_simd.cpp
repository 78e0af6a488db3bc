#include "pentatron/kernels/attention/attention_simd.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 warns of its own intrinsics (its bug 105593), also in templates that are compiled at the
// end of the file.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include <omp.h>

#include "pentatron/kernels/attention/attention_avx512.h"
#include "pentatron/kernels/gemm/pack_buffer.h"

namespace pentatron::kernels::attention_detail {
namespace {

using gemm_detail::find_micro_kernel;
using gemm_detail::kMr;
using gemm_detail::PackBuffer;
using gemm_detail::Strip;

constexpr int64_t kKeys =
    8 * kMr; // of a block; blocks begin at multiples from the start of the document
constexpr int64_t kPanels = 4; // of queries that share a pass over the keys in the backward
constexpr int64_t kMaxHeadSize = 512;
constexpr float kLog2e = std::numbers::log2e_v<float>;

constexpr int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}

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

template <bool kPair> class Attention {
 public:
  static constexpr int64_t kElement = kPair ? 2 : 4;
  static constexpr int64_t kPerUnit = kPair ? 2 : 1;
  static int64_t units(int64_t k) { return ceil_div(k, kPerUnit); }

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
        : k(cut.take<uint32_t>(longest * units(d))), v(cut.take<uint32_t>(units(longest) * d)),
          q(cut.take<uint32_t>(units(d) * kQueries)), scores(cut.take<float>(kKeys * kQueries)),
          probabilities(cut.take<uint32_t>(kKeys * kQueries)), out(cut.take<float>(d * kQueries)) {}
    uint32_t *k, *v, *q;
    float* scores;
    uint32_t* probabilities;
    float* out;
  };
  struct BackwardBuffers {
    explicit BackwardBuffers(Cutter& cut, int64_t longest, int64_t d)
        : k(cut.take<uint32_t>(longest * units(d))), v(cut.take<uint32_t>(longest * units(d))),
          k_across(cut.take<uint32_t>(units(longest) * d)), dk(cut.take<float>(longest * d)),
          dv(cut.take<float>(longest * d)), q(cut.take<uint32_t>(kPanels * kQueries * units(d))),
          dout(cut.take<uint32_t>(kPanels * kQueries * units(d))),
          q_across(cut.take<uint32_t>(units(kPanels * kQueries) * ceil_div(d, 32) * 32)),
          dout_across(cut.take<uint32_t>(units(kPanels * kQueries) * ceil_div(d, 32) * 32)),
          dq(cut.take<float>(kPanels * kQueries * d)),
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
#pragma omp for schedule(dynamic, 1)
      for (size_t i = 0; i < tasks.size(); ++i) f(tasks[i], mine);
    }
  }

  /// Keys [from, to) of a document as rows of A with k = head size: tiles of 14 keys.
  void pack_keys(const HeadsView& x, int64_t token, int64_t head, int64_t from, int64_t to,
                 uint32_t* dst) const {
    for (int64_t key = from; key < to; key += kMr) {
      const int lanes = static_cast<int>(std::min<int64_t>(kMr, to - key));
      gemm_detail::pack_along<kPair>(at(x, token + key, head), x.token_stride, d_,
                                     {0, lanes, lanes, dst + (key - from) * units(d_)});
    }
  }
  /// The transpose: features as rows of A with k = keys, tiles of 14 features.
  void pack_features(const HeadsView& x, int64_t token, int64_t head, int64_t from, int64_t to,
                     uint32_t* dst) const {
    std::array<Strip, kMaxHeadSize / kMr + 1> strips;
    int count = 0;
    for (int64_t c = 0; c < d_; c += kMr) {
      const int lanes = static_cast<int>(std::min<int64_t>(kMr, d_ - c));
      strips[static_cast<size_t>(count++)] = {c, lanes, lanes, dst + c * units(to - from)};
    }
    gemm_detail::pack_across<kPair>(at(x, token + from, head), x.token_stride, to - from,
                                    strips.data(), count);
  }
  /// `count` (1..32) queries as columns of B with k = head size.
  void pack_queries(const HeadsView& x, int64_t token, int64_t head, int count,
                    uint32_t* dst) const {
    for (int i = 0; i < count; i += 16) {
      gemm_detail::pack_along<kPair>(at(x, token + i, head), x.token_stride, d_,
                                     {0, std::min(16, count - i), kQueries, dst + i});
    }
  }
  /// Features as columns of B with k = queries: panels of 32 features, the last of 16 if that is
  /// enough.
  void pack_queries_across(const HeadsView& x, int64_t token, int64_t head, int64_t count,
                           uint32_t* dst) const {
    std::array<Strip, kMaxHeadSize / 16> strips;
    int n = 0;
    for (int64_t c = 0; c < d_; c += 16) {
      const int64_t panel = c / 32 * 32;
      strips[static_cast<size_t>(n++)] = {c, static_cast<int>(std::min<int64_t>(16, d_ - c)),
                                          d_ - panel > 16 ? 32 : 16,
                                          dst + panel * units(count) + (c - panel)};
    }
    gemm_detail::pack_across<kPair>(at(x, token, head), x.token_stride, count, strips.data(), n);
  }

  /// scores[key][32] of a block of keys, whose tiles begin at `keys_packed`; `limit` keys are
  /// packed from there on.
  void multiply_keys(const uint32_t* keys_packed, int64_t count, int64_t limit,
                     const uint32_t* queries, float* scores) const {
    for (int64_t key = 0; key < count; key += kMr) {
      gemm_detail::TileOut out;
      out.out = scores + key * kQueries;
      out.ld_out = kQueries;
      out.columns = kQueries;
      find_micro_kernel<kPair>(static_cast<int>(std::min<int64_t>(kMr, limit - key)),
                               2)(units(d_), keys_packed + key * units(d_), queries, out);
    }
  }
  /// out[feature][32] += features of keys [from, from + count) times probabilities.
  void multiply_features(const uint32_t* features_packed, int64_t packed_keys, int64_t from,
                         int64_t count, const uint32_t* probabilities, float* out) const {
    for (int64_t c = 0; c < d_; c += kMr) {
      const int64_t lanes = std::min<int64_t>(kMr, d_ - c);
      gemm_detail::TileOut tile;
      tile.in = tile.out = out + c * kQueries;
      tile.ld_in = tile.ld_out = kQueries;
      tile.columns = kQueries;
      find_micro_kernel<kPair>(static_cast<int>(lanes), 2)(
          units(count), features_packed + c * units(packed_keys) + from / kPerUnit * lanes,
          probabilities, tile);
    }
  }

  void forward_task(const AttentionForward& args, const Task& task, ForwardBuffers& b) const;
  void backward_task(const AttentionBackward& args, const Task& task, BackwardBuffers& b,
                     double* dsinks) const;
  void backward_queries(const AttentionBackward& args, const Task& task, int64_t head,
                        int64_t query, int64_t count, BackwardBuffers& b, double* dsink) const;

  const AttentionShape& s_;
  const float* sinks_;
  int64_t d_;
  int64_t group_;
  int64_t longest_ = 0;
};

template <bool kPair> void Attention<kPair>::forward(const AttentionForward& args) const {
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
  run_tasks<ForwardBuffers>(
      tasks, [&](const Task& task, ForwardBuffers& b) { forward_task(args, task, b); });
}

template <bool kPair>
void Attention<kPair>::forward_task(const AttentionForward& args, const Task& task,
                                    ForwardBuffers& b) const {
  const int64_t token = s_.documents[task.document], tokens = s_.documents.back();
  const int64_t from = first_visible(task.begin) / kKeys * kKeys, packed = task.end - from;
  pack_keys(args.k, token, task.kv_head, from, task.end, b.k);
  pack_features(args.v, token, task.kv_head, from, task.end, b.v);
  const float factor = static_cast<float>(s_.scale) * kLog2e;
  for (int64_t head = task.kv_head * group_; head < (task.kv_head + 1) * group_; ++head) {
    for (int64_t query = task.begin; query < task.end; query += kQueries) {
      const int count = static_cast<int>(std::min<int64_t>(kQueries, task.end - query));
      const Visibility visible{query, s_.window, count};
      std::array<float, kQueries> top, sum;
      top.fill(sinks_ != nullptr ? sinks_[head] / static_cast<float>(s_.scale)
                                 : -std::numeric_limits<float>::infinity());
      sum.fill(sinks_ != nullptr ? 1.0F : 0.0F);
      std::fill_n(b.out, d_ * kQueries, 0.0F);
      pack_queries(args.q, token + query, head, count, b.q);
      for (int64_t key = first_visible(query) / kKeys * kKeys; key < query + count; key += kKeys) {
        const int64_t keys = std::min(kKeys, query + count - key);
        multiply_keys(b.k + (key - from) * units(d_), keys, task.end - key, b.q, b.scores);
        softmax_step<kPair>(b.scores, keys, key, visible, factor, top.data(), sum.data(), b.out, d_,
                            b.probabilities);
        multiply_features(b.v, packed, key - from, keys,
                          kPair ? b.probabilities : reinterpret_cast<const uint32_t*>(b.scores),
                          b.out);
      }
      for (int i = 0; i < count; ++i) {
        static_cast<float*>(args.lse)[head * tokens + token + query + i] =
            top[i] * static_cast<float>(s_.scale) + std::log(sum[i]);
      }
      for (float& x : sum) x = 1.0F / x;
      store_transposed<kPair>(b.out, d_, sum.data(), count, out_at(args.out, token + query, head),
                              args.out.token_stride);
    }
  }
}

template <bool kPair>
void Attention<kPair>::backward(const AttentionBackward& args, std::vector<double>& dsinks) const {
  const auto documents = static_cast<int64_t>(s_.documents.size()) - 1;
  std::vector<double> partial(static_cast<size_t>(documents * s_.heads));
  std::vector<Task> tasks;
  for (int64_t i = 0; i < documents; ++i) {
    const int64_t length = s_.documents[i + 1] - s_.documents[i];
    for (int64_t g = 0; g < s_.kv_heads && length > 0; ++g) tasks.push_back({i, g, 0, length});
  }
  run_tasks<BackwardBuffers>(tasks, [&](const Task& task, BackwardBuffers& b) {
    backward_task(args, task, b, partial.data() + task.document * s_.heads);
  });
  for (size_t i = 0; i < partial.size(); ++i) dsinks[i % dsinks.size()] += partial[i];
}

template <bool kPair>
void Attention<kPair>::backward_task(const AttentionBackward& args, const Task& task,
                                     BackwardBuffers& b, double* dsinks) const {
  const int64_t token = s_.documents[task.document], length = task.end;
  pack_keys(args.k, token, task.kv_head, 0, length, b.k);
  pack_keys(args.v, token, task.kv_head, 0, length, b.v);
  pack_features(args.k, token, task.kv_head, 0, length, b.k_across);
  std::fill_n(b.dk, length * d_, 0.0F);
  std::fill_n(b.dv, length * d_, 0.0F);
  for (int64_t head = task.kv_head * group_; head < (task.kv_head + 1) * group_; ++head) {
    for (int64_t query = 0; query < length; query += kPanels * kQueries) {
      backward_queries(args, task, head, query, std::min(kPanels * kQueries, length - query), b,
                       dsinks + head);
    }
  }
  store_rows<kPair>(b.dk, length, d_, out_at(args.dk, token, task.kv_head), args.dk.token_stride);
  store_rows<kPair>(b.dv, length, d_, out_at(args.dv, token, task.kv_head), args.dv.token_stride);
}

/// Up to 128 queries of a head against all keys they see.
template <bool kPair>
void Attention<kPair>::backward_queries(const AttentionBackward& args, const Task& task,
                                        int64_t head, int64_t query, int64_t count,
                                        BackwardBuffers& b, double* dsink) const {
  const int64_t token = s_.documents[task.document], tokens = s_.documents.back(),
                length = task.end;
  const float scale = static_cast<float>(s_.scale), factor = scale * kLog2e;
  std::array<float, kPanels * kQueries> lse{}, delta{};
  row_dots<kPair>(at(args.out, token + query, head), args.out.token_stride,
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
  for (int64_t p = 0; p < panels; ++p) {
    pack_queries(args.q, token + query + p * kQueries, head, panel_size(p),
                 b.q + p * kQueries * units(d_));
    pack_queries(args.dout, token + query + p * kQueries, head, panel_size(p),
                 b.dout + p * kQueries * units(d_));
  }
  pack_queries_across(args.q, token + query, head, count, b.q_across);
  pack_queries_across(args.dout, token + query, head, count, b.dout_across);
  std::fill_n(b.dq, panels * kQueries * d_, 0.0F);

  // dst[key][feature] += x[panel][key][query] times y[query][feature], over the panels [first,
  // last).
  const auto add_to_keys = [&](const void* x, const uint32_t* y, int64_t first, int64_t last,
                               int64_t keys, float* dst) {
    const int64_t queries = std::min(count, last * kQueries) - first * kQueries;
    for (int64_t key = 0; key < keys; key += kMr) {
      const int lanes = static_cast<int>(std::min<int64_t>(kMr, keys - key));
      for (int64_t p = first; p < last; ++p) {
        const char* const src =
            static_cast<const char*>(x) + (p * kKeys + key) * kQueries * kElement;
        gemm_detail::pack_along<kPair>(
            src, kQueries, panel_size(p),
            {0, lanes, lanes, b.packed + (p - first) * (kQueries / kPerUnit) * lanes});
      }
      for (int64_t c = 0; c < d_; c += 32) {
        const int width = static_cast<int>(std::min<int64_t>(32, d_ - c));
        const int vectors = width > 16 ? 2 : 1;
        gemm_detail::TileOut tile;
        tile.in = tile.out = dst + key * d_ + c;
        tile.ld_in = tile.ld_out = d_;
        tile.columns = width;
        find_micro_kernel<kPair>(lanes, vectors)(
            units(queries), b.packed,
            y + c * units(count) + first * (kQueries / kPerUnit) * 16 * vectors, tile);
      }
    }
  };

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
      multiply_keys(b.k + key * units(d_), keys, length - key, b.q + p * kQueries * units(d_), s);
      multiply_keys(b.v + key * units(d_), keys, length - key, b.dout + p * kQueries * units(d_),
                    dp);
      softmax_backward<kPair>(s, dp, keys, key, {q0, s_.window, panel_size(p)}, factor, scale,
                              lse.data() + p * kQueries, delta.data() + p * kQueries,
                              b.p16 + p * kKeys * kQueries, b.ds16 + p * kKeys * kQueries, b.pairs);
      multiply_features(b.k_across, length, key, keys,
                        kPair ? b.pairs : reinterpret_cast<const uint32_t*>(dp),
                        b.dq + p * kQueries * d_);
    }
    if (first >= last) continue;
    add_to_keys(kPair ? static_cast<const void*>(b.p16) : b.p, b.dout_across, first, last, keys,
                b.dv + key * d_);
    add_to_keys(kPair ? static_cast<const void*>(b.ds16) : b.ds, b.q_across, first, last, keys,
                b.dk + key * d_);
  }
  std::array<float, kQueries> one;
  one.fill(1.0F);
  for (int64_t p = 0; p < panels; ++p) {
    store_transposed<kPair>(b.dq + p * kQueries * d_, d_, one.data(), panel_size(p),
                            out_at(args.dq, token + query + p * kQueries, head),
                            args.dq.token_stride);
  }
}

} // namespace

std::string refuse(const AttentionShape& s, const Context& context) {
  if (context.device != Device::kCpu) return "needs CPU memory";
  if (s.dtype != DType::kFloat32 && s.dtype != DType::kBFloat16)
    return "takes float32 and bfloat16 only";
  if (!cpu_features().avx512) return "needs AVX-512 (F, BW, DQ, VL)";
  if (s.dtype == DType::kBFloat16 && !cpu_features().avx512_bf16) return "needs AVX512-BF16";
  if (s.head_size > kMaxHeadSize) return "head size is above 512";
  return {};
}

void forward(const AttentionForward& args, const Context&) {
  if (args.shape.dtype == DType::kBFloat16) {
    Attention<true>(args.shape).forward(args);
  } else {
    Attention<false>(args.shape).forward(args);
  }
}

void backward(const AttentionBackward& args, const Context&) {
  std::vector<double> dsinks(static_cast<size_t>(args.shape.heads));
  if (args.shape.dtype == DType::kBFloat16) {
    Attention<true>(args.shape).backward(args, dsinks);
  } else {
    Attention<false>(args.shape).backward(args, dsinks);
  }
  if (args.shape.sinks != nullptr)
    std::copy(dsinks.begin(), dsinks.end(), static_cast<float*>(args.dsinks));
}

} // namespace pentatron::kernels::attention_detail

#else // not x86-64

namespace pentatron::kernels::attention_detail {

std::string refuse(const AttentionShape&, const Context&) {
  return "needs an x86-64 processor";
}
void forward(const AttentionForward&, const Context&) {}
void backward(const AttentionBackward&, const Context&) {}

} // namespace pentatron::kernels::attention_detail

#endif
