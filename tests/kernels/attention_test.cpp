#include "pentatron/kernels/attention/attention.h"

#include <algorithm>

#include "pentatron/base/error.h"
#include "tests/kernels/array.h"
#include "tests/kernels/document_pairs.h"
#include "tests/kernels/emulated_attention.h"

namespace pentatron::kernels {

namespace {

using namespace testing;

struct Case {
  std::string name;
  DType dtype = DType::kFloat32;
  int64_t heads = 2, kv_heads = 2, head_size = 16;
  int64_t value_size = 0; ///< 0: head_size
  std::vector<int64_t> documents = {0, 40};
  int64_t window = 0;
  bool sinks = false;
  AttentionMask mask = AttentionMask::kCausal;
  bool bias = false, dlse = false;
  double cap = 0, dropout = 0;
  std::vector<AttentionPair> pairs = {}; ///< empty: a pair for each document
  int64_t queries = 0, keys = 0;         ///< of `pairs`
  std::string_view entry = "avx512";     ///< or "amx_bf16", or "amx_bf16_emulated"
};

/// Rows of q, of k | v and of their gradients, as attention layers have them.
struct Attention {
  explicit Attention(const Case& c)
      : c(c), pairs(c.pairs.empty() ? document_pairs(c.documents) : c.pairs),
        acc(acc_dtype(c.dtype)), d(c.head_size), e(c.value_size > 0 ? c.value_size : c.head_size),
        queries(c.pairs.empty() ? c.documents.back() : c.queries),
        keys(c.pairs.empty() ? c.documents.back() : c.keys), row(c.kv_heads * (d + e)),
        width(c.heads * e), span(std::max(queries, keys) + 70),
        q(Array::random(c.dtype, queries * c.heads * d, 1)),
        kv(Array::random(c.dtype, keys * row, 4)), sinks(Array::random(acc, c.heads, 2)),
        bias(Array::random(acc, c.heads * (2 * span - 1), 5)),
        dout(Array::random(c.dtype, queries * width, 3)),
        dlse(Array::random(acc, c.heads * queries, 6)), out(c.dtype, queries * width),
        lse(acc, c.heads * queries), most(acc, c.heads, kUnwritten),
        dq(c.dtype, q.size(), kUnwritten), dkv(c.dtype, kv.size(), kUnwritten),
        dsinks(acc, c.heads, kUnwritten), dbias(acc, bias.size(), kUnwritten) {
    for (int64_t t = 0; t < queries; ++t) // samples far apart, in no order
      row_ids.push_back((uint64_t{7} << 40) * static_cast<uint64_t>(1 + t % 3) + 1000 - t);
  }

  static constexpr double kUnwritten = -7;

  HeadsView view(Array& x, int64_t offset, int64_t stride, int64_t size) const {
    return {static_cast<std::byte*>(x.data()) + offset * element_size(c.dtype), stride, size};
  }
  AttentionShape shape() {
    return {.dtype = c.dtype,
            .heads = c.heads,
            .kv_heads = c.kv_heads,
            .head_size = d,
            .value_size = c.value_size,
            .queries = queries,
            .pairs = pairs,
            .mask = c.mask,
            .scale = 1 / std::sqrt(static_cast<double>(d)),
            .cap = c.cap,
            .window = c.window,
            .sinks = c.sinks ? sinks.data() : nullptr,
            .bias = c.bias ? bias.data() : nullptr,
            .span = c.bias ? span : 0,
            .dropout = {.p = c.dropout,
                        .key = {77, 5},
                        .site = 9,
                        .row_ids = row_ids.data(),
                        .first_head = 300}};
  }
  AttentionForward forward() {
    return {.shape = shape(),
            .q = view(q, 0, c.heads * d, d),
            .k = view(kv, 0, row, d),
            .v = view(kv, c.kv_heads * d, row, e),
            .out = view(out, 0, width, e),
            .lse = lse.data(),
            .max_logits = c.sinks || c.bias || c.cap > 0 ? nullptr : most.data()};
  }
  AttentionBackward backward() {
    return {.shape = shape(),
            .q = view(q, 0, c.heads * d, d),
            .k = view(kv, 0, row, d),
            .v = view(kv, c.kv_heads * d, row, e),
            .out = view(out, 0, width, e),
            .dout = view(dout, 0, width, e),
            .lse = lse.data(),
            .dlse = c.dlse ? dlse.data() : nullptr,
            .dq = view(dq, 0, c.heads * d, d),
            .dk = view(dkv, 0, row, d),
            .dv = view(dkv, c.kv_heads * d, row, e),
            .dsinks = c.sinks ? dsinks.data() : nullptr,
            .dbias = c.bias ? dbias.data() : nullptr};
  }
  void run_reference() {
    attention_forward_reference(forward(), {});
    attention_backward_reference(backward(), {});
  }
  /// Runs the case's entry; false where this machine does not have it.
  bool run_fast() {
    if (c.entry == "amx_bf16_emulated") {
      if (!refuse_emulated_attention(shape()).empty()) return false;
      emulated_attention_forward(forward());
      emulated_attention_backward(backward());
      return true;
    }
    const auto named = [&](const auto& entry) { return entry.name == c.entry; };
    const auto f = std::ranges::find_if(attention_forward_entries(), named);
    const auto b = std::ranges::find_if(attention_backward_entries(), named);
    if (!f->refuse(forward(), {}).empty() || !b->refuse(backward(), {}).empty()) return false;
    f->run(forward(), {});
    b->run(backward(), {});
    return true;
  }

  Case c;
  std::vector<AttentionPair> pairs;
  std::vector<uint64_t> row_ids;
  DType acc;
  int64_t d, e, queries, keys, row, width, span;
  Array q, kv, sinks, bias, dout, dlse, out, lse, most, dq, dkv, dsinks, dbias;
};

class AttentionShapes : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionShapes, FastEntriesAreTheReference) {
  Attention fast(GetParam()), reference(GetParam());
  reference.run_reference();
  if (!fast.run_fast()) GTEST_SKIP() << "this processor does not have the entry";
  const bool half = GetParam().dtype != DType::kFloat32;
  // With AVX2 only inputs and results are bf16 or fp16.
  const bool rounds_between = GetParam().entry != "avx2";
  const double bound = !half ? 4e-6 : rounds_between ? 3e-2 : 0x1p-8;
  if (GetParam().dtype == DType::kFloat16) {
    expect_close(fast.out, reference.out, 0x1p-10, 0x1p-11, "out");
    expect_close(fast.dq, reference.dq, 3e-3, 3e-3, "dq");
    expect_close(fast.dkv, reference.dkv, 3e-3, 3e-3, "dkv");
  }
  expect_close(fast.out, reference.out, half ? 0x1p-7 : 0, bound, "out");
  expect_close(fast.lse, reference.lse, 0, half ? 1e-5 : 4e-6, "lse");
  expect_close(fast.most, reference.most, 0, half ? 1e-5 : 4e-6, "max_logits");
  expect_close(fast.dq, reference.dq, half ? 2e-2 : 1e-5, half ? 4e-2 : 1e-5, "dq");
  expect_close(fast.dkv, reference.dkv, half ? 2e-2 : 1e-5, half ? 4e-2 : 1e-5, "dkv");
  if (GetParam().bias)
    expect_close(fast.dbias, reference.dbias, half ? 2e-2 : 1e-5, half ? 6e-2 : 1e-5, "dbias");
  if (GetParam().sinks)
    expect_close(fast.dsinks, reference.dsinks, half ? 2e-2 : 1e-5, half ? 1e-1 : 1e-4, "dsinks");
}

TEST_P(AttentionShapes, ThreadsChangeNothing) {
  Attention one(GetParam()), three(GetParam());
  bool ran = false;
  with_threads(1, [&] { ran = one.run_fast(); });
  if (!ran) GTEST_SKIP() << "this processor does not have the entry";
  with_threads(3, [&] { three.run_fast(); });
  EXPECT_TRUE(one.out.same_bits(three.out));
  EXPECT_TRUE(one.dq.same_bits(three.dq));
  EXPECT_TRUE(one.dkv.same_bits(three.dkv));
  EXPECT_TRUE(one.dbias.same_bits(three.dbias));
  EXPECT_TRUE(one.dsinks.same_bits(three.dsinks));
}

std::vector<Case> cases() {
  const std::vector<Case> shapes = {
      {.name = "one_token", .documents = {0, 1}},
      {.name = "plain"},
      {.name = "long", .head_size = 64, .documents = {0, 300}},
      {.name = "grouped", .heads = 6, .kv_heads = 2, .head_size = 32, .documents = {0, 130}},
      {.name = "multi_query", .heads = 4, .kv_heads = 1, .head_size = 48, .documents = {0, 97}},
      {.name = "odd_head", .head_size = 33, .documents = {0, 65}},
      {.name = "tiny_head", .head_size = 1, .documents = {0, 33}},
      {.name = "wide_head", .heads = 1, .kv_heads = 1, .head_size = 256, .documents = {0, 70}},
      {.name = "documents", .heads = 4, .head_size = 24, .documents = {0, 1, 1, 34, 150, 151, 290}},
      {.name = "window", .head_size = 20, .documents = {0, 260}, .window = 37},
      {.name = "window_of_one", .documents = {0, 50}, .window = 1},
      {.name = "sinks", .heads = 4, .head_size = 40, .documents = {0, 140}, .sinks = true},
      {.name = "everything",
       .heads = 6,
       .kv_heads = 3,
       .head_size = 72,
       .documents = {0, 129, 129, 400},
       .window = 115,
       .sinks = true},
      {.name = "full", .documents = {0, 1, 34, 150}, .mask = AttentionMask::kFull},
      {.name = "full_window",
       .heads = 4,
       .head_size = 24,
       .documents = {0, 33, 300},
       .window = 41,
       .mask = AttentionMask::kFull},
      {.name = "bias",
       .heads = 4,
       .head_size = 20,
       .documents = {0, 40, 300},
       .bias = true,
       .dlse = true},
      {.name = "values_are_wider",
       .heads = 4,
       .head_size = 24,
       .value_size = 40,
       .documents = {0, 1, 150},
       .dlse = true},
      {.name = "values_are_narrower",
       .head_size = 50,
       .value_size = 17,
       .documents = {0, 150},
       .mask = AttentionMask::kFull},
      {.name = "cross", // tokens 40 to 49 are no query, keys 0 and 1 are in no pair
       .heads = 6,
       .kv_heads = 3,
       .head_size = 18,
       .mask = AttentionMask::kFull,
       .bias = true,
       .dlse = true,
       .pairs = {{.query_size = 40, .key_begin = 150, .key_size = 3, .offset = 2},
                 {.query_begin = 50, .query_size = 131, .key_begin = 2, .key_size = 133},
                 {.query_begin = 181, .query_size = 0, .key_begin = 140, .key_size = 5},
                 {.query_begin = 181, .query_size = 3, .key_begin = 145, .key_size = 0}},
       .queries = 190,
       .keys = 155},
      {.name = "blocks_of_a_ring", // later queries, keys ahead, and keys that only some see
       .heads = 4,
       .kv_heads = 2,
       .mask = AttentionMask::kCausal,
       .dlse = true,
       .pairs =
           {{.query_size = 150, .key_begin = 40, .key_size = 130, .offset = -20},
            {.query_begin = 150, .query_size = 10, .key_begin = 0, .key_size = 20, .offset = 9},
            {.query_begin = 160, .query_size = 70, .key_begin = 20, .key_size = 20, .offset = 70},
            {.query_begin = 230, .query_size = 90, .key_begin = 170, .key_size = 70, .offset = 33}},
       .queries = 320,
       .keys = 240},
      {.name = "prefix",
       .heads = 4,
       .kv_heads = 2,
       .head_size = 12,
       .mask = AttentionMask::kPrefix,
       .pairs =
           {{.query_size = 200, .key_size = 200, .prefix = 131},
            {.query_begin = 200, .query_size = 30, .key_begin = 200, .key_size = 30},
            {.query_begin = 230, .query_size = 20, .key_begin = 230, .key_size = 20, .prefix = 20}},
       .queries = 250,
       .keys = 250},
      {.name = "cap", .heads = 4, .kv_heads = 2, .documents = {0, 40, 300}, .cap = 0.4},
      {.name = "dropout", .heads = 4, .kv_heads = 2, .documents = {0, 40, 300}, .dropout = 0.3},
      {.name = "dropout_bias", // keys in the middle of their sample, beside words' borders
       .heads = 4,
       .kv_heads = 2,
       .head_size = 18,
       .mask = AttentionMask::kFull,
       .bias = true,
       .dlse = true,
       .dropout = 0.1,
       .pairs = {{.query_size = 140, .key_size = 150, .key_position = 45},
                 {.query_begin = 150, .query_size = 33, .key_begin = 150, .key_size = 7}},
       .queries = 190,
       .keys = 157},
      {.name = "large_cap", .head_size = 20, .documents = {0, 70}, .cap = 50},
      {.name = "saturated_cap", .head_size = 20, .documents = {0, 70}, .cap = 0.02},
      {.name = "dropout_of_few", .documents = {0, 3, 12}, .dropout = 0.5},
      {.name = "dropout_far_prefix_wide_values", // positions above 2^23, also ahead of the queries
       .heads = 4,
       .kv_heads = 2,
       .head_size = 10,
       .value_size = 24,
       .mask = AttentionMask::kPrefix,
       .dropout = 0.75,
       .pairs = {{.query_size = 60, .key_size = 100, .prefix = 70, .key_position = (1 << 24) - 100},
                 {.query_begin = 60,
                  .query_size = 50,
                  .key_begin = 100,
                  .key_size = 80,
                  .offset = -40,
                  .key_position = 9'000'001}},
       .queries = 110,
       .keys = 180},
      {.name = "cap_dropout_sinks_window",
       .heads = 4,
       .kv_heads = 2,
       .head_size = 33,
       .documents = {0, 129, 260},
       .window = 50,
       .sinks = true,
       .cap = 0.7,
       .dropout = 0.5},
      {.name = "all_at_once",
       .heads = 6,
       .kv_heads = 2,
       .head_size = 9,
       .value_size = 33,
       .window = 50,
       .sinks = true,
       .mask = AttentionMask::kPrefix,
       .bias = true,
       .dlse = true,
       .pairs = {{.query_begin = 3,
                  .query_size = 200,
                  .key_begin = 90,
                  .key_size = 170,
                  .offset = -11,
                  .prefix = 101},
                 {.query_begin = 220, .query_size = 60, .key_size = 90, .offset = 40, .prefix = 7}},
       .queries = 280,
       .keys = 260}};
  std::vector<Case> result;
  for (const auto& [dtype, entry, suffix] :
       {std::tuple{DType::kFloat32, "avx2", "_avx2_fp32"},
        {DType::kBFloat16, "avx2", "_avx2_bf16"},
        {DType::kFloat16, "avx2", "_avx2_fp16"},
        {DType::kFloat32, "avx512", "_fp32"},
        {DType::kBFloat16, "avx512", "_bf16"},
        {DType::kBFloat16, "amx_bf16", "_amx"},
        {DType::kBFloat16, "amx_bf16_emulated", "_amx_emulated"}}) {
    for (Case c : shapes) {
      c.dtype = dtype;
      c.entry = entry;
      c.name += suffix;
      result.push_back(c);
    }
  }
  return result;
}
INSTANTIATE_TEST_SUITE_P(Kernels, AttentionShapes, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

/// The reference's gradients against differences of its own forward.
TEST(AttentionReference, GradientsAreDifferences) {
  const Case c{.name = "",
               .dtype = DType::kFloat64,
               .heads = 4,
               .kv_heads = 2,
               .head_size = 3,
               .value_size = 2,
               .window = 4,
               .sinks = true,
               .mask = AttentionMask::kPrefix,
               .bias = true,
               .dlse = true,
               .cap = 0.6,
               .dropout = 0.3,
               .pairs = {{.query_size = 5, .key_begin = 7, .key_size = 5, .prefix = 3},
                         {.query_begin = 5, .query_size = 7, .key_size = 7, .offset = 1}},
               .queries = 12,
               .keys = 12};
  Attention a(c);
  a.run_reference();
  const auto objective = [&](Attention& x) {
    attention_forward_reference(x.forward(), {});
    double sum = 0;
    for (int64_t i = 0; i < x.out.size(); ++i) sum += x.out[i] * x.dout[i];
    for (int64_t i = 0; i < x.lse.size(); ++i) sum += x.lse[i] * x.dlse[i];
    return sum;
  };
  const auto check = [&](Array Attention::*input, const Array& gradient, int64_t i) {
    constexpr double kStep = 1e-6;
    Attention up(c), down(c);
    (up.*input).set(i, (up.*input)[i] + kStep);
    (down.*input).set(i, (down.*input)[i] - kStep);
    EXPECT_NEAR((objective(up) - objective(down)) / (2 * kStep), gradient[i], 1e-7) << i;
  };
  for (int64_t i = 0; i < a.q.size(); ++i) check(&Attention::q, a.dq, i);
  for (int64_t i = 0; i < a.kv.size(); ++i) check(&Attention::kv, a.dkv, i);
  for (int64_t i = 0; i < a.bias.size(); ++i) check(&Attention::bias, a.dbias, i);
  for (int64_t i = 0; i < a.sinks.size(); ++i) check(&Attention::sinks, a.dsinks, i);
}

/// An entry with a type it takes.
class AttentionEntries : public ::testing::TestWithParam<std::pair<DType, std::string_view>> {
 protected:
  Case case_of(std::vector<int64_t> documents) const {
    return {.name = "",
            .dtype = GetParam().first,
            .documents = std::move(documents),
            .entry = GetParam().second};
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, AttentionEntries,
                         ::testing::Values(std::pair{DType::kFloat32, "avx2"},
                                           std::pair{DType::kBFloat16, "avx2"},
                                           std::pair{DType::kFloat16, "avx2"},
                                           std::pair{DType::kFloat32, "avx512"},
                                           std::pair{DType::kBFloat16, "avx512"},
                                           std::pair{DType::kBFloat16, "amx_bf16"},
                                           std::pair{DType::kBFloat16, "amx_bf16_emulated"}));

TEST_P(AttentionEntries, ANanStaysInItsDocumentAndBehindItsToken) {
  const Case c = case_of({0, 60, 130});
  Attention clean(c), dirty(c);
  constexpr int64_t kToken = 90;
  for (int64_t i = 0; i < c.head_size; ++i) dirty.kv.set(kToken * dirty.row + i, kNaN);
  if (!clean.run_fast() || !dirty.run_fast())
    GTEST_SKIP() << "this processor does not have the entry";
  for (int64_t t = 0; t < clean.queries; ++t) {
    for (int64_t i = 0; i < c.head_size; ++i) {
      const int64_t at = t * clean.width + i;
      if (t < kToken) {
        EXPECT_EQ(clean.out[at], dirty.out[at]) << t;
      } else {
        EXPECT_TRUE(std::isnan(dirty.out[at])) << t;
      }
    }
  }
}

TEST_P(AttentionEntries, LargeScoresDoNotOverflow) {
  const Case c = case_of({0, 50});
  Attention fast(c), reference(c);
  for (Attention* a : {&fast, &reference}) {
    for (Array* x : {&a->q, &a->kv}) {
      for (int64_t i = 0; i < x->size(); ++i) x->set(i, (*x)[i] * 100);
    }
  }
  reference.run_reference();
  if (!fast.run_fast()) GTEST_SKIP() << "this processor does not have the entry";
  const bool half = c.dtype != DType::kFloat32;
  expect_close(fast.out, reference.out, half ? 1e-2 : 1e-3, half ? 1.0 : 1e-1, "out");
}

TEST_P(AttentionEntries, QueriesWithoutKeysGiveNothing) {
  Case c = case_of({});
  c.dlse = c.bias = true;
  c.queries = 130;
  c.keys = 140;
  // Queries below 40 see nothing; the last pair's keys are all ahead.
  c.pairs = {
      {.query_size = 100, .key_size = 100, .offset = 40},
      {.query_begin = 100, .query_size = 30, .key_begin = 100, .key_size = 40, .offset = 31}};
  Attention a(c);
  if (!a.run_fast()) GTEST_SKIP() << "this processor does not have the entry";
  for (int64_t t = 0; t < c.queries; ++t) {
    const bool sees = t >= 40 && t < 100;
    for (int64_t h = 0; h < c.heads; ++h) {
      EXPECT_EQ(std::isinf(a.lse[h * c.queries + t]), !sees) << t;
      for (int64_t i = 0; i < c.head_size; ++i) {
        const int64_t at = t * a.width + h * c.head_size + i;
        EXPECT_EQ(a.out[at] == 0, !sees) << t;
        EXPECT_EQ(a.dq[at] == 0, !sees) << t;
      }
    }
  }
  // Keys 60 and later of the first pair, and those of the second, are seen by nobody.
  for (int64_t i = 0; i < a.dkv.size(); ++i) EXPECT_EQ(a.dkv[i] == 0, i / a.row >= 60) << i;
  for (int64_t i = 0; i < a.dbias.size(); ++i) EXPECT_TRUE(std::isfinite(a.dbias[i]));
}

TEST_P(AttentionEntries, RowsOfNoPairAreNotWritten) {
  Case c = case_of({});
  c.queries = c.keys = 200;
  c.mask = AttentionMask::kFull;
  c.pairs = {{.query_begin = 20, .query_size = 51, .key_begin = 3, .key_size = 57},
             {.query_begin = 80, .query_size = 33, .key_begin = 61, .key_size = 129}};
  Attention a(c);
  if (!a.run_fast()) GTEST_SKIP() << "this processor does not have the entry";
  const auto inside = [](int64_t t, int64_t begin, int64_t size) {
    return t >= begin && t < begin + size;
  };
  for (int64_t i = 0; i < a.dq.size(); ++i) {
    const int64_t t = i / (c.heads * c.head_size);
    EXPECT_EQ(a.dq[i] != Attention::kUnwritten, inside(t, 20, 51) || inside(t, 80, 33)) << t;
  }
  for (int64_t i = 0; i < a.dkv.size(); ++i) {
    const int64_t t = i / a.row;
    EXPECT_EQ(a.dkv[i] != Attention::kUnwritten, inside(t, 3, 57) || inside(t, 61, 129)) << t;
  }
}

TEST(Attention, DropoutOfAllIsTheReferences) {
  Attention a({.name = "", .documents = {0, 40}, .dropout = 1});
  EXPECT_FALSE(attention_supported(a.shape()));
  attention_forward(a.forward());
  attention_backward(a.backward());
  for (int64_t i = 0; i < a.out.size(); ++i) EXPECT_EQ(a.out[i], 0);
  for (int64_t i = 0; i < a.dkv.size(); ++i) EXPECT_EQ(a.dkv[i], 0);
}

TEST(Attention, ContradictionsAreErrors) {
  const auto error = [](Case c) {
    Attention a(c);
    EXPECT_THROW(attention_forward(a.forward()), ShapeError);
  };
  error({.name = "", .heads = 3, .kv_heads = 2});
  error({.name = "", .documents = {0, 50, 40}});
  error({.name = "", .pairs = {{.query_size = 5, .key_size = 4}}, .queries = 4, .keys = 4});
  error({.name = "", .cap = -1});
  error({.name = "", .dropout = 1.5});
  error({.name = "",
         .dropout = 0.5,
         .pairs = {{.query_size = 4, .key_size = 4, .key_position = (1 << 24) - 3}},
         .queries = 4,
         .keys = 4});
  Attention without_rows({.name = "", .dropout = 0.5});
  AttentionForward args = without_rows.forward();
  args.shape.dropout.row_ids = nullptr;
  EXPECT_THROW(attention_forward(args), ShapeError);
  Attention capped({.name = "", .cap = 1});
  args = capped.forward();
  args.max_logits = capped.most.data();
  EXPECT_THROW(attention_forward(args), ShapeError);
  Case far{.name = "", .documents = {0, 10}, .bias = true};
  far.pairs = {{.query_size = 4, .key_size = 4, .offset = 300}};
  far.queries = far.keys = 4;
  error(far);
}

} // namespace
} // namespace pentatron::kernels
