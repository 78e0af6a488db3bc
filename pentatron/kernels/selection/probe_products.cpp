// Examples of matrix products and of attention.
#include <array>
#include <cmath>

#include "pentatron/kernels/attention/cached_attention.h"
#include "pentatron/kernels/gemm/gemm.h"
#include "pentatron/kernels/selection/probe_detail.h"

namespace pentatron::kernels::selection_detail {

void probe_gemm(Probe& probe, Arguments& arguments) {
  const int part = probe.op_class.part, types = part / 16;
  GemmArgs g;
  g.in_dtype = element_type(probe.op_class);
  const bool rounds = types == 2 || types == 5; // as in gemm_class
  g.out_dtype = rounds || types == 3 ? g.in_dtype : DType::kFloat32;
  g.transpose_a = (part & 8) != 0;
  g.transpose_b = (part & 4) != 0;
  g.n = (part & 2) != 0 ? 1536 : 384;
  // A weight gradient sums over tokens and adds to what is there.
  g.accumulate = g.transpose_a;
  g.m = g.transpose_a ? 1024 : arguments.rows();
  g.k = g.transpose_a ? 2 * arguments.rows() : (part & 1) != 0 ? 1024 : 384;
  g.lda = g.transpose_a ? g.m : g.k;
  g.ldb = g.transpose_b ? g.k : g.n;
  g.ldc = g.n;
  g.a = arguments.input(g.in_dtype, g.m * g.k);
  g.b = arguments.input(g.in_dtype, g.k * g.n);
  g.c = arguments.output(g.out_dtype, g.m * g.n);
  probe.work = 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  probe.unit = kFlopsPerSecond;
  add_entries(probe, gemm_entries(), g);
  // MKL chooses its order of sums by the whole shape. A weight gradient is no token's result.
  for (Probe::Entry& entry : probe.entries)
    entry.per_token = g.transpose_a || !entry.name.starts_with("mkl");
}

namespace {

constexpr int64_t kHeads = 8;
constexpr int64_t kKvHeads = 4;
constexpr int64_t kCached = 512; ///< tokens of a sequence
constexpr int64_t kSequences = 4;

void probe_cached(Probe& probe, Arguments& arguments, DType dtype, int64_t head_size) {
  static constexpr std::array<CachedSequence, kSequences> kExample = [] {
    std::array<CachedSequence, kSequences> all;
    for (int64_t i = 0; i < kSequences; ++i)
      all[static_cast<size_t>(i)] = {.first = i, .count = 1, .length = kCached};
    return all;
  }();
  auto* const sequences = arguments.values<CachedSequence>(kSequences);
  const int64_t cached = kCached * kKvHeads * head_size, tokens = kSequences * kHeads * head_size;
  for (size_t i = 0; sequences != nullptr && i < kExample.size(); ++i) {
    sequences[i] = kExample[i];
    // One page each.
    auto* const pages = arguments.values<const void*>(2);
    pages[0] = arguments.input(dtype, cached);
    pages[1] = arguments.input(dtype, cached);
    sequences[i].k = {pages, 1};
    sequences[i].v = {pages + 1, 1};
  }
  const HeadsView strides{
      .data = nullptr, .token_stride = kHeads * head_size, .head_stride = head_size};
  CachedAttention a{.dtype = dtype,
                    .heads = kHeads,
                    .kv_heads = kKvHeads,
                    .head_size = head_size,
                    .sequences = kExample,
                    .q = strides,
                    .out = strides,
                    .kv_token_stride = kKvHeads * head_size,
                    .kv_head_stride = head_size,
                    .page = kCached,
                    .scale = 1 / std::sqrt(static_cast<double>(head_size))};
  if (sequences != nullptr) a.sequences = {sequences, kExample.size()};
  a.q.data = const_cast<void*>(arguments.input(dtype, tokens));
  a.out.data = arguments.output(dtype, tokens);
  probe.work =
      2.0 * kSequences * static_cast<double>(cached) * static_cast<double>(element_size(dtype));
  add_entries(probe, cached_attention_entries(), a, arguments.workspace(workspace_bytes(a)));
}

} // namespace

void probe_attention(Probe& probe, Arguments& arguments) {
  static constexpr std::array<int64_t, 3> kHeadSizes = {64, 128, 192};
  static constexpr std::array<AttentionPair, 1> kDocument = {
      {{.query_size = 256, .key_size = 256}}};
  const auto dtype = static_cast<DType>(probe.op_class.part / 4);
  const int64_t d = kHeadSizes[probe.op_class.part % 4];
  if (probe.op_class.op == Op::kCachedAttention) return probe_cached(probe, arguments, dtype, d);
  const int64_t tokens = kDocument[0].query_size;
  const auto view = [&](void* data, int64_t heads) {
    return HeadsView{.data = data, .token_stride = heads * d, .head_stride = d};
  };
  const auto in = [&](int64_t heads) {
    return view(const_cast<void*>(arguments.input(dtype, tokens * heads * d)), heads);
  };
  const auto out = [&](int64_t heads) {
    return view(arguments.output(dtype, tokens * heads * d), heads);
  };
  const AttentionShape shape{.dtype = dtype,
                             .heads = kHeads,
                             .kv_heads = kKvHeads,
                             .head_size = d,
                             .queries = tokens,
                             .pairs = kDocument,
                             .scale = 1 / std::sqrt(static_cast<double>(d))};
  // Two products over the visible half of the scores; five in backward.
  probe.work = 2.0 * static_cast<double>(tokens * tokens * kHeads * d);
  probe.unit = kFlopsPerSecond;
  void* const lse = arguments.output(acc_dtype(dtype), kHeads * tokens);
  if (probe.op_class.op == Op::kAttentionForward) {
    add_entries(probe, attention_forward_entries(),
                AttentionForward{.shape = shape,
                                 .q = in(kHeads),
                                 .k = in(kKvHeads),
                                 .v = in(kKvHeads),
                                 .out = out(kHeads),
                                 .lse = lse});
    return;
  }
  probe.work *= 2.5;
  add_entries(probe, attention_backward_entries(),
              AttentionBackward{.shape = shape,
                                .q = in(kHeads),
                                .k = in(kKvHeads),
                                .v = in(kKvHeads),
                                .out = in(kHeads),
                                .dout = in(kHeads),
                                .lse = lse,
                                .dq = out(kHeads),
                                .dk = out(kKvHeads),
                                .dv = out(kKvHeads)});
}

} // namespace pentatron::kernels::selection_detail
