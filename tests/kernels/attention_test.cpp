#include "pentatron/kernels/attention/attention.h"

#include <algorithm>

#include "pentatron/base/error.h"
#include "tests/kernels/array.h"
#include "tests/kernels/emulated_attention.h"

namespace pentatron::kernels {

namespace {

using namespace testing;

struct Case {
  std::string name;
  DType dtype = DType::kFloat32;
  int64_t heads = 2, kv_heads = 2, head_size = 16;
  std::vector<int64_t> documents = {0, 40};
  int64_t window = 0;
  bool sinks = false;
  std::string_view entry = "avx512"; ///< or "amx_bf16", or "amx_bf16_emulated"
};

/// q, k, v lie side by side in rows of one fused projection, as attention layers have them.
struct Attention {
  explicit Attention(const Case& c)
      : c(c), acc(acc_dtype(c.dtype)), tokens(c.documents.back()),
        row((c.heads + 2 * c.kv_heads) * c.head_size), width(c.heads * c.head_size),
        qkv(Array::random(c.dtype, tokens * row, 1)), sinks(Array::random(acc, c.heads, 2)),
        dout(Array::random(c.dtype, tokens * width, 3)), out(c.dtype, tokens * width),
        lse(acc, c.heads * tokens), dqkv(c.dtype, tokens * row, -7.0), dsinks(acc, c.heads, -7.0) {}

  HeadsView view(Array& x, int64_t first_head, int64_t stride) const {
    return {static_cast<std::byte*>(x.data()) + first_head * c.head_size * element_size(c.dtype),
            stride, c.head_size};
  }
  AttentionShape shape() {
    return {.dtype = c.dtype,
            .heads = c.heads,
            .kv_heads = c.kv_heads,
            .head_size = c.head_size,
            .documents = c.documents,
            .scale = 1 / std::sqrt(static_cast<double>(c.head_size)),
            .window = c.window,
            .sinks = c.sinks ? sinks.data() : nullptr};
  }
  AttentionForward forward() {
    return {.shape = shape(),
            .q = view(qkv, 0, row),
            .k = view(qkv, c.heads, row),
            .v = view(qkv, c.heads + c.kv_heads, row),
            .out = view(out, 0, width),
            .lse = lse.data()};
  }
  AttentionBackward backward() {
    return {.shape = shape(),
            .q = view(qkv, 0, row),
            .k = view(qkv, c.heads, row),
            .v = view(qkv, c.heads + c.kv_heads, row),
            .out = view(out, 0, width),
            .dout = view(dout, 0, width),
            .lse = lse.data(),
            .dq = view(dqkv, 0, row),
            .dk = view(dqkv, c.heads, row),
            .dv = view(dqkv, c.heads + c.kv_heads, row),
            .dsinks = c.sinks ? dsinks.data() : nullptr};
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
  DType acc;
  int64_t tokens, row, width;
  Array qkv, sinks, dout, out, lse, dqkv, dsinks;
};

class AttentionShapes : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionShapes, FastEntriesAreTheReference) {
  Attention fast(GetParam()), reference(GetParam());
  reference.run_reference();
  if (!fast.run_fast()) GTEST_SKIP() << "this processor does not have the entry";
  const bool half = GetParam().dtype == DType::kBFloat16;
  // With AVX2 only inputs and results are bf16.
  const bool rounds_between = GetParam().entry != "avx2";
  const double bound = !half ? 4e-6 : rounds_between ? 3e-2 : 0x1p-8;
  expect_close(fast.out, reference.out, half ? 0x1p-7 : 0, bound, "out");
  expect_close(fast.lse, reference.lse, 0, half ? 1e-5 : 4e-6, "lse");
  expect_close(fast.dqkv, reference.dqkv, half ? 2e-2 : 1e-5, half ? 4e-2 : 1e-5, "dqkv");
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
  EXPECT_TRUE(one.dqkv.same_bits(three.dqkv));
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
       .sinks = true}};
  std::vector<Case> result;
  for (const auto& [dtype, entry, suffix] :
       {std::tuple{DType::kFloat32, "avx2", "_avx2_fp32"},
        {DType::kBFloat16, "avx2", "_avx2_bf16"},
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
               .documents = {0, 5, 12},
               .window = 4,
               .sinks = true};
  Attention a(c);
  a.run_reference();
  const auto objective = [&](Attention& x) {
    attention_forward_reference(x.forward(), {});
    double sum = 0;
    for (int64_t i = 0; i < x.out.size(); ++i) sum += x.out[i] * x.dout[i];
    return sum;
  };
  const auto check = [&](Array Attention::*input, const Array& gradient, int64_t i) {
    constexpr double kStep = 1e-6;
    Attention up(c), down(c);
    (up.*input).set(i, (up.*input)[i] + kStep);
    (down.*input).set(i, (down.*input)[i] - kStep);
    EXPECT_NEAR((objective(up) - objective(down)) / (2 * kStep), gradient[i], 1e-7) << i;
  };
  for (int64_t i = 0; i < a.qkv.size(); ++i) check(&Attention::qkv, a.dqkv, i);
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
                                           std::pair{DType::kFloat32, "avx512"},
                                           std::pair{DType::kBFloat16, "avx512"},
                                           std::pair{DType::kBFloat16, "amx_bf16"},
                                           std::pair{DType::kBFloat16, "amx_bf16_emulated"}));

TEST_P(AttentionEntries, ANanStaysInItsDocumentAndBehindItsToken) {
  const Case c = case_of({0, 60, 130});
  Attention clean(c), dirty(c);
  constexpr int64_t kToken = 90;
  for (int64_t i = 0; i < c.head_size; ++i)
    dirty.qkv.set(kToken * dirty.row + c.heads * c.head_size + i, kNaN);
  if (!clean.run_fast() || !dirty.run_fast())
    GTEST_SKIP() << "this processor does not have the entry";
  for (int64_t t = 0; t < clean.tokens; ++t) {
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
    for (int64_t i = 0; i < a->qkv.size(); ++i) a->qkv.set(i, a->qkv[i] * 100);
  }
  reference.run_reference();
  if (!fast.run_fast()) GTEST_SKIP() << "this processor does not have the entry";
  const bool half = c.dtype == DType::kBFloat16;
  expect_close(fast.out, reference.out, half ? 1e-2 : 1e-3, half ? 1.0 : 1e-1, "out");
}

TEST(Attention, ContradictionsAreErrors) {
  const auto error = [](Case c) {
    Attention a(c);
    EXPECT_THROW(attention_forward(a.forward()), ShapeError);
  };
  error({.name = "", .heads = 3, .kv_heads = 2});
  error({.name = "", .documents = {1, 40}});
  error({.name = "", .documents = {0, 50, 40}});
}

} // namespace
} // namespace pentatron::kernels
