// Attention over kept keys and values against attention of whole sequences.
#include "pentatron/kernels/attention/cached_attention.h"

#include "pentatron/base/error.h"
#include "pentatron/kernels/quantize/fp8_rows.h"
#include "tests/kernels/array.h"
#include "tests/kernels/document_pairs.h"

namespace pentatron::kernels {

namespace {

using namespace testing;

constexpr int64_t kPage = 48, kSpan = 512; ///< in tokens

struct CachedCase {
  std::string name;
  int64_t heads = 2, kv_heads = 2, head_size = 16;
  std::vector<std::pair<int64_t, int64_t>> sequences = {{40, 1}}; ///< length, new tokens
  int64_t window = 0;
  bool sinks = false;
  bool bias = false;
  DType dtype = DType::kFloat32;
  int64_t value_size = 0; ///< of the first features of keys; 0: values lie beside the keys
};

/// Whole sequences, side by side, and the caches with margins that they are kept in.
struct Sequences {
  explicit Sequences(const CachedCase& c)
      : c(c), documents({0}), sinks(Array::random(acc_dtype(c.dtype), c.heads, 2)), q(c.dtype, 0),
        k(c.dtype, 0), v(c.dtype, 0), whole(c.dtype, 0), new_q(c.dtype, 0), out(c.dtype, 0),
        bias(c.dtype, 0) {
    for (const auto& [length, count] : c.sequences) {
      documents.push_back(documents.back() + length);
      tokens += count;
    }
    const int64_t all = documents.back(), d = c.head_size;
    q = Array::random(c.dtype, all * c.heads * d, 1);
    k = Array::random(c.dtype, all * c.kv_heads * d, 3);
    v = Array::random(c.dtype, all * c.kv_heads * d, 4);
    whole = Array(c.dtype, all * c.heads * d);
    new_q = Array(c.dtype, tokens * c.heads * d);
    out = Array(c.dtype, tokens * c.heads * size_of_values(), -7.0);
    int64_t row = 0;
    for_new_tokens([&](int64_t token) {
      for (int64_t i = 0; i < c.heads * d; ++i)
        new_q.set(row * c.heads * d + i, q[token * c.heads * d + i]);
      ++row;
    });
    int64_t first = 0;
    for (size_t s = 0; s < c.sequences.size(); ++s) {
      const auto& [length, count] = c.sequences[s];
      const int64_t begin = documents[s] * c.kv_heads * d;
      for (int64_t t = 0; t < length; t += kPage) {
        pages.push_back(k.at(begin + t * c.kv_heads * d));
        value_pages.push_back((c.value_size > 0 ? k : v).at(begin + t * c.kv_heads * d));
      }
      sequences.push_back({.first = first, .count = count, .length = length, .k = {}, .v = {}});
      first += count;
    }
    size_t page = 0;
    for (CachedSequence& s : sequences) {
      const auto count = static_cast<size_t>((s.length + kPage - 1) / kPage);
      s.k = std::span(pages).subspan(page, count);
      s.v = std::span(value_pages).subspan(page, count);
      page += count;
    }
    const int64_t columns = 2 * kSpan - 1;
    bias = Array::random(acc_dtype(c.dtype), c.heads * columns, 5);
  }
  void for_new_tokens(const std::function<void(int64_t)>& f) const {
    for (size_t s = 0; s < c.sequences.size(); ++s)
      for (int64_t i = documents[s + 1] - c.sequences[s].second; i < documents[s + 1]; ++i) f(i);
  }
  int64_t size_of_values() const { return c.value_size > 0 ? c.value_size : c.head_size; }
  CachedAttention args() {
    const int64_t d = c.head_size, e = size_of_values();
    return {.dtype = c.dtype,
            .heads = c.heads,
            .kv_heads = c.kv_heads,
            .head_size = d,
            .value_size = c.value_size,
            .sequences = sequences,
            .q = {new_q.data(), c.heads * d, d},
            .out = {out.data(), c.heads * e, e},
            .kv_token_stride = c.kv_heads * d,
            .kv_head_stride = d,
            .page = kPage,
            .scale = 0.3,
            .window = c.window,
            .sinks = c.sinks ? sinks.data() : nullptr,
            .bias = c.bias ? bias.data() : nullptr,
            .span = c.bias ? kSpan : 0};
  }
  /// What attention of the whole sequences gives for the new tokens.
  Array expected() {
    const int64_t d = c.head_size, all = documents.back();
    const std::vector<AttentionPair> pairs = document_pairs(documents);
    Array lse(acc_dtype(c.dtype), c.heads * all);
    attention_forward_reference({.shape = {.dtype = c.dtype,
                                           .heads = c.heads,
                                           .kv_heads = c.kv_heads,
                                           .head_size = d,
                                           .queries = all,
                                           .pairs = pairs,
                                           .scale = 0.3,
                                           .window = c.window,
                                           .sinks = c.sinks ? sinks.data() : nullptr,
                                           .bias = c.bias ? bias.data() : nullptr,
                                           .span = c.bias ? kSpan : 0},
                                 .q = {q.data(), c.heads * d, d},
                                 .k = {k.data(), c.kv_heads * d, d},
                                 .v = {(c.value_size > 0 ? k : v).data(), c.kv_heads * d, d},
                                 .out = {whole.data(), c.heads * d, d},
                                 .lse = lse.data()},
                                {});
    Array result(c.dtype, out.size());
    const int64_t e = size_of_values();
    int64_t row = 0;
    for_new_tokens([&](int64_t token) {
      for (int64_t i = 0; i < c.heads * e; ++i)
        result.set(row * c.heads * e + i, whole[token * c.heads * d + i / e * d + i % e]);
      ++row;
    });
    return result;
  }
  void run(const Entry<CachedAttention>& entry) {
    std::vector<std::byte> workspace(workspace_bytes(args()));
    entry.run(args(), {.workspace = workspace});
  }

  CachedCase c;
  std::vector<int64_t> documents;
  int64_t tokens = 0;
  Array sinks, q, k, v, whole, new_q, out, bias;
  std::vector<const void*> pages, value_pages;
  std::vector<CachedSequence> sequences;
};

class CachedShapes : public ::testing::TestWithParam<CachedCase> {};

TEST_P(CachedShapes, EveryEntryIsAttentionOfTheWholeSequences) {
  Sequences data(GetParam());
  const Array expected = data.expected();
  for (const Entry<CachedAttention>& entry : entries_for(cached_attention_entries(), data.args())) {
    data.out.fill(-7.0);
    data.run(entry);
    const double rtol = data.c.dtype == DType::kFloat32 ? 0 : epsilon(data.c.dtype);
    expect_close(data.out, expected, rtol, data.c.dtype == DType::kFloat64 ? 1e-13 : 3e-6,
                 std::string(entry.name));
  }
}

TEST_P(CachedShapes, ThreadsChangeNothing) {
  Sequences one(GetParam()), three(GetParam());
  const Entry<CachedAttention> entry = entries_for(cached_attention_entries(), one.args()).front();
  with_threads(1, [&] { one.run(entry); });
  with_threads(3, [&] { three.run(entry); });
  EXPECT_TRUE(one.out.same_bits(three.out));
}

std::vector<CachedCase> cached_cases() {
  const std::vector<CachedCase> shapes = {
      {.name = "first_token", .sequences = {{1, 1}}},
      {.name = "one_token"},
      {.name = "long", .head_size = 64, .sequences = {{1000, 1}}},
      {.name = "grouped", .heads = 6, .kv_heads = 2, .head_size = 32, .sequences = {{130, 1}}},
      {.name = "multi_query", .heads = 4, .kv_heads = 1, .head_size = 48, .sequences = {{97, 3}}},
      {.name = "odd_head", .head_size = 33, .sequences = {{65, 2}}},
      {.name = "tiny_head", .head_size = 1, .sequences = {{33, 33}}},
      {.name = "wide_head", .heads = 1, .kv_heads = 1, .head_size = 256, .sequences = {{70, 1}}},
      {.name = "batch",
       .heads = 4,
       .head_size = 24,
       .sequences = {{1, 1}, {64, 0}, {300, 1}, {65, 5}}},
      {.name = "window", .head_size = 20, .sequences = {{260, 4}, {20, 1}}, .window = 37},
      {.name = "window_of_one", .sequences = {{50, 2}}, .window = 1},
      {.name = "sinks", .heads = 4, .head_size = 40, .sequences = {{140, 1}}, .sinks = true},
      {.name = "everything",
       .heads = 6,
       .kv_heads = 3,
       .head_size = 72,
       .sequences = {{129, 2}, {400, 1}, {7, 7}},
       .window = 115,
       .sinks = true},
      {.name = "latents",
       .heads = 5,
       .kv_heads = 1,
       .head_size = 40,
       .sequences = {{140, 3}, {9, 9}},
       .sinks = true,
       .value_size = 33},
      {.name = "latents_of_deepseek",
       .heads = 16,
       .kv_heads = 1,
       .head_size = 576,
       .sequences = {{130, 1}},
       .value_size = 512},
      {.name = "bias", .heads = 4, .head_size = 24, .sequences = {{200, 3}, {5, 5}}, .bias = true}};
  std::vector<CachedCase> result;
  for (const DType dtype : kAllTypes) {
    for (CachedCase c : shapes) {
      c.dtype = dtype;
      c.name.append("_").append(name(dtype));
      result.push_back(c);
    }
  }
  return result;
}
INSTANTIATE_TEST_SUITE_P(Kernels, CachedShapes, ::testing::ValuesIn(cached_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(CachedAttention, ANanReachesItsSequenceOnly) {
  const CachedCase c{.name = "", .sequences = {{100, 1}, {30, 1}}};
  Sequences data(c);
  data.k.set(70 * c.kv_heads * c.head_size, kNaN);
  data.run(entries_for(cached_attention_entries(), data.args()).front());
  const int64_t width = c.heads * c.head_size;
  EXPECT_TRUE(std::isnan(data.out[0]));
  for (int64_t i = width; i < 2 * width; ++i) EXPECT_FALSE(std::isnan(data.out[i])) << i;
}

TEST(CachedAttention, CapsAndMemoriesAreTheirFormulas) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    Sequences data(
        {.name = "", .heads = 4, .head_size = 24, .sequences = {{100, 3}}, .dtype = dtype});
    for (const bool causal : {true, false}) {
      CachedAttention args = data.args();
      args.causal = causal;
      args.cap = 0.7;
      for (const Entry<CachedAttention>& entry : entries_for(cached_attention_entries(), args)) {
        std::vector<std::byte> workspace(workspace_bytes(args));
        entry.run(args, {.workspace = workspace});
        for (int64_t i = 0; i < 3 * 4; ++i) {
          const int64_t token = i / 4, h = i % 4, kv = h / 2, d = 24,
                        last = causal ? 98 + token : 100;
          double sum = 0;
          std::vector<double> out(24, 0.0);
          for (int64_t j = 0; j < last; ++j) {
            double dot = 0;
            for (int64_t c = 0; c < d; ++c)
              dot += data.new_q[(token * 4 + h) * d + c] * data.k[(j * 2 + kv) * d + c];
            const double p = std::exp(0.7 * std::tanh(0.3 * dot / 0.7));
            sum += p;
            for (int64_t c = 0; c < d; ++c)
              out[static_cast<size_t>(c)] += p * data.v[(j * 2 + kv) * d + c];
          }
          for (int64_t c = 0; c < d; ++c)
            EXPECT_NEAR(data.out[i * d + c], out[static_cast<size_t>(c)] / sum,
                        dtype == DType::kFloat64 ? 1e-13 : 2e-6)
                << entry.name;
        }
      }
    }
  }
}

/// Against the values that the codes stand for.
TEST(CachedAttention, KeysAndValuesInFp8) {
  const std::vector<CachedCase> shapes = {
      {.name = "everything",
       .heads = 6,
       .kv_heads = 3,
       .head_size = 72,
       .sequences = {{129, 2}, {400, 1}, {7, 7}},
       .window = 115,
       .sinks = true,
       .bias = true},
      {.name = "odd_head", .head_size = 33, .sequences = {{65, 2}}},
      {.name = "latents",
       .heads = 5,
       .kv_heads = 1,
       .head_size = 40,
       .sequences = {{140, 3}, {9, 9}},
       .value_size = 33}};
  for (const DType dtype : kAllTypes)
    for (CachedCase c : shapes) {
      c.dtype = dtype;
      Sequences data(c);
      const int64_t d = c.head_size, row_bytes = d + kFp8ScaleBytes,
                    rows = data.documents.back() * c.kv_heads;
      std::vector<uint8_t> k(static_cast<size_t>(rows * row_bytes)), v(k.size());
      to_fp8_rows(dtype, rows, d, data.k.data(), k.data());
      to_fp8_rows(dtype, rows, d, data.v.data(), v.data());
      std::vector<const void*> pages, value_pages;
      for (size_t i = 0; i < c.sequences.size(); ++i)
        for (int64_t t = 0; t < c.sequences[i].first; t += kPage) {
          const int64_t at = (data.documents[i] + t) * c.kv_heads * row_bytes;
          pages.push_back(k.data() + at);
          value_pages.push_back((c.value_size > 0 ? k : v).data() + at);
        }
      from_fp8_rows(dtype, rows, d, k.data(), data.k.data());
      from_fp8_rows(dtype, rows, d, v.data(), data.v.data());
      data.run(reference_of(cached_attention_entries()));
      const Array expected = data.out;

      CachedAttention args = data.args();
      args.fp8 = true;
      args.kv_token_stride = c.kv_heads * row_bytes;
      args.kv_head_stride = row_bytes;
      size_t page = 0;
      for (CachedSequence& s : data.sequences) {
        const auto count = static_cast<size_t>((s.length + kPage - 1) / kPage);
        s.k = std::span(pages).subspan(page, count);
        s.v = std::span(value_pages).subspan(page, count);
        page += count;
      }
      for (const Entry<CachedAttention>& entry : entries_for(cached_attention_entries(), args)) {
        data.out.fill(-7.0);
        std::vector<std::byte> workspace(workspace_bytes(args));
        entry.run(args, {.workspace = workspace});
        // In 16 bits, what is compared with was rounded once more.
        const bool wide = dtype == DType::kFloat32 || dtype == DType::kFloat64;
        expect_close(data.out, expected, wide ? 0 : 4 * epsilon(dtype),
                     dtype == DType::kFloat64 ? 1e-13
                     : wide                   ? 3e-6
                                              : 2 * epsilon(dtype),
                     c.name + " " + std::string(entry.name));
      }
    }
}

TEST(Fp8Rows, ReadAsTheNearestCodeTimesTheScaleOfTheRow) {
  constexpr int64_t kRows = 9, kCols = 37;
  for (const DType dtype : kAllTypes) {
    Array x = Array::random(dtype, kRows * kCols, 8), back(dtype, kRows * kCols);
    for (int64_t c = 0; c < kCols; ++c) {
      x.set(2 * kCols + c, 0);
      x.set(3 * kCols + c, x[3 * kCols + c] * 0x1p-20);
    }
    x.set(5 * kCols + 1, kNaN);
    x.set(6 * kCols + 36, -kInf);
    std::vector<uint8_t> bytes(static_cast<size_t>(kRows * (kCols + kFp8ScaleBytes)));
    to_fp8_rows(dtype, kRows, kCols, x.data(), bytes.data());
    from_fp8_rows(dtype, kRows, kCols, bytes.data(), back.data());
    for (int64_t r = 0; r < kRows; ++r) {
      double amax = 0;
      for (int64_t c = 0; c < kCols; ++c) amax = std::max(amax, std::abs(x[r * kCols + c]));
      for (int64_t c = 0; c < kCols; ++c) {
        const double given = x[r * kCols + c], read = back[r * kCols + c];
        if (r == 5 || r == 6) {
          EXPECT_TRUE(std::isnan(read)) << r;
        } else {
          // Half a step of three mantissa bits, or of the smallest numbers, and what the type adds.
          const double step = std::max(std::abs(given) / 16, amax / 448 * 0x1p-10);
          EXPECT_NEAR(read, given, step * 1.0001 + epsilon(dtype) * std::abs(given) + 1e-30)
              << name(dtype) << ' ' << r;
        }
      }
    }
  }
}

TEST(CachedAttention, ArgumentsThatContradictAreErrors) {
  Sequences data({.name = ""});
  CachedAttention args = data.args();
  args.kv_heads = 3;
  EXPECT_THROW(cached_attention(args, {}), ShapeError);
  args = data.args();
  const CachedSequence bad{.first = 0, .count = 5, .length = 3};
  args.sequences = {&bad, 1};
  EXPECT_THROW(cached_attention(args, {}), ShapeError);
  const CachedSequence without_pages{.first = 0, .count = 1, .length = 3};
  args.sequences = {&without_pages, 1};
  EXPECT_THROW(cached_attention(args, {}), ShapeError);
}

} // namespace

} // namespace pentatron::kernels
