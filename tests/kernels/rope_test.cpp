#include "pentatron/kernels/rope/rope.h"

#include <array>
#include <cmath>
#include <complex>
#include <fstream>

#include <nlohmann/json.hpp>

#include "pentatron/base/error.h"
#include "pentatron/kernels/rope/rope_frequencies.h"
#include "tests/kernels/array.h"
#include "tests/kernels/rope_options.h"

namespace pentatron::kernels {

namespace {

using namespace testing;

struct Heads {
  Heads(DType dtype, int64_t tokens, int64_t heads, int64_t head_size, int64_t rotary_dim)
      : tables(rope_tables({.rotary_dim = rotary_dim}, 64)),
        cos(Array::of(acc_dtype(dtype), tables.cos)), sin(Array::of(acc_dtype(dtype), tables.sin)),
        x(Array::random(dtype, tokens * heads * head_size, 1)), y(dtype, x.size()) {
    for (int64_t t = 0; t < tokens; ++t)
      positions.push_back(static_cast<int32_t>((7 * t + 3) % 64));
    args = {.dtype = dtype,
            .tokens = tokens,
            .heads = heads,
            .head_size = head_size,
            .rotary_dim = rotary_dim,
            .x = x.data(),
            .y = y.data(),
            .cos = cos.data(),
            .sin = sin.data(),
            .max_position = 64,
            .positions = positions.data()};
  }
  Rope with_strides() const {
    Rope full = args;
    full.x_head_stride = full.y_head_stride = args.head_size;
    full.x_token_stride = full.y_token_stride = args.heads * args.head_size;
    return full;
  }
  RopeTables tables;
  Array cos, sin, x, y;
  std::vector<int32_t> positions;
  Rope args;
};

TEST(RopeReference, RotatesPairsAsComplexNumbers) {
  for (const bool interleaved : {false, true})
    for (const bool transpose : {false, true}) {
      Heads h(DType::kFloat64, 4, 2, 10, 6);
      h.args.interleaved = interleaved;
      h.args.transpose = transpose;
      rope(h.args);
      for (int64_t t = 0; t < 4; ++t)
        for (int64_t n = 0; n < 2; ++n) {
          const int64_t at = (t * 2 + n) * 10;
          for (int64_t i = 0; i < 3; ++i) {
            const int64_t a = at + (interleaved ? 2 * i : i),
                          b = at + (interleaved ? 2 * i + 1 : i + 3);
            const double angle =
                h.positions[t] * std::pow(10000.0, -2.0 * i / 6) * (transpose ? -1 : 1);
            const auto rotated = std::complex(h.x[a], h.x[b]) * std::polar(1.0, angle);
            EXPECT_NEAR(h.y[a], rotated.real(), 1e-13);
            EXPECT_NEAR(h.y[b], rotated.imag(), 1e-13);
          }
          for (int64_t i = 6; i < 10; ++i) EXPECT_EQ(h.y[at + i], h.x[at + i]);
        }
    }
}

TEST(RopeSimd, EqualsTheReference) {
  for (const DType dtype : kFastTypes)
    for (const bool interleaved : {false, true})
      for (const bool transpose : {false, true})
        // Few and many heads, with whole and cut groups of those that a thread takes.
        for (const auto& [head_size, rotary, heads] :
             std::initializer_list<std::array<int64_t, 3>>{{2, 2, 3},
                                                           {6, 4, 5},
                                                           {16, 16, 33},
                                                           {31, 18, 3},
                                                           {64, 64, 17},
                                                           {80, 20, 1},
                                                           {100, 98, 9},
                                                           {128, 128, 3},
                                                           {256, 256, 18},
                                                           {5, 0, 6}}) {
          Heads expected(dtype, 7, heads, head_size, rotary);
          expected.args.interleaved = interleaved;
          expected.args.transpose = transpose;
          reference_of(rope_entries()).run(expected.with_strides(), {});
          for (const auto& entry : fast_entries(rope_entries(), expected.args)) {
            Heads h(dtype, 7, heads, head_size, rotary);
            h.args.interleaved = interleaved;
            h.args.transpose = transpose;
            entry.run(h.with_strides(), {});
            const std::string what =
                fmt::format("{} {} heads={} head_size={} rotary_dim={} interleaved={}", entry.name,
                            name(dtype), heads, head_size, rotary, interleaved);
            expect_close(h.y, expected.y, epsilon(dtype), 1e-6, what);
            h.args.y = h.x.data();
            entry.run(h.with_strides(), {});
            EXPECT_TRUE(h.x.same_bits(h.y)) << what << " in place";
          }
        }
}

TEST(Rope, TransposeUndoesTheRotation) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    Heads h(dtype, 9, 4, 32, 32);
    rope(h.args);
    Array back(dtype, h.x.size());
    Rope args = h.args;
    args.x = h.y.data();
    args.y = back.data();
    args.transpose = true;
    rope(args);
    expect_close(back, h.x, 0, 8 * epsilon(dtype));
  }
}

TEST(Rope, ReadsHeadsInsideAFusedBuffer) {
  // Rows of 3 heads; the middle one is k and is rotated in place.
  Heads h(DType::kFloat32, 5, 3, 16, 16);
  Array buffer = h.x;
  Rope args = h.args;
  args.heads = 1;
  args.x = args.y = static_cast<float*>(buffer.data()) + 16;
  args.x_token_stride = args.y_token_stride = 48;
  rope(args);
  rope(h.args);
  for (int64_t t = 0; t < 5; ++t)
    for (int64_t i = 0; i < 48; ++i)
      EXPECT_EQ(buffer[t * 48 + i], i / 16 == 1 ? h.y[t * 48 + i] : h.x[t * 48 + i]);
}

TEST(Rope, KeepsNaNAndInfinityInTheirPair) {
  for (const DType dtype : kAllTypes)
    for (const double bad : {kNaN, kInf}) {
      Heads h(dtype, 2, 1, 40, 40);
      h.x.set(40 + 3, bad);
      rope(h.args);
      for (int64_t i = 0; i < 80; ++i) EXPECT_EQ(std::isfinite(h.y[i]), i != 43 && i != 63) << i;
    }
}

TEST(Rope, DoesNotDependOnThreads) {
  Heads one(DType::kFloat32, 60, 4, 96, 96), many(DType::kFloat32, 60, 4, 96, 96);
  with_threads(1, [&] { rope(one.args); });
  with_threads(5, [&] { rope(many.args); });
  EXPECT_TRUE(many.y.same_bits(one.y));
}

TEST(Rope, RefusesWhatItCannotCompute) {
  Heads h(DType::kFloat32, 2, 1, 8, 8);
  Rope args = h.args;
  args.rotary_dim = 7;
  EXPECT_THROW(rope(args), ShapeError);
  args = h.args;
  args.rotary_dim = 10;
  EXPECT_THROW(rope(args), ShapeError);
  h.positions[1] = 64;
  EXPECT_THROW(rope(h.args), ShapeError);
  h.positions[1] = -1;
  EXPECT_THROW(rope(h.args), ShapeError);
}

TEST(RopeFrequencies, AreThoseOfHuggingFace) {
  std::ifstream file(PENTATRON_TEST_DATA "/kernels/rope_frequencies.json");
  ASSERT_TRUE(file.is_open());
  const auto cases = nlohmann::json::parse(file);
  EXPECT_GE(cases.size(), 10u);
  for (const auto& expected : cases) {
    const RopeOptions o = rope_options_of(expected.at("options"));
    const std::vector<double> frequencies = rope_frequencies(o);
    const auto golden = expected.at("inv_freq").get<std::vector<double>>();
    ASSERT_EQ(frequencies.size(), golden.size());
    for (size_t i = 0; i < golden.size(); ++i)
      EXPECT_NEAR(frequencies[i] / golden[i], 1.0, 1e-14)
          << expected.at("options").dump() << " pair " << i;
    EXPECT_NEAR(rope_attention_factor(o), expected.at("attention_factor").get<double>(), 1e-14);
  }
}

TEST(RopeFrequencies, TablesHoldTheAttentionFactor) {
  const RopeOptions o{
      .rotary_dim = 8, .scaling = RopeScaling::kYarn, .factor = 4, .original_max_position = 32};
  const RopeTables tables = rope_tables(o, 3);
  ASSERT_EQ(tables.cos.size(), 12u);
  EXPECT_EQ(tables.cos[0], rope_attention_factor(o));
  EXPECT_GT(rope_attention_factor(o), 1.0);
  EXPECT_DOUBLE_EQ(tables.sin[2 * 4 + 1],
                   std::sin(2 * rope_frequencies(o)[1]) * rope_attention_factor(o));
}

TEST(RopeFrequencies, DependOnTheLongestSequenceOfTheTable) {
  const auto angle = [](const RopeOptions& o, int64_t positions) {
    const RopeTables tables = rope_tables(o, positions);
    const auto last = static_cast<size_t>(turned_dims(o) / 2 - 1), width = last + 1;
    return std::atan2(tables.sin[width + last], tables.cos[width + last]); // of position 1
  };
  const RopeOptions plain{.rotary_dim = 8, .theta = 100},
      dynamic{.rotary_dim = 8,
              .theta = 100,
              .scaling = RopeScaling::kDynamic,
              .factor = 2,
              .original_max_position = 32},
      longrope{.rotary_dim = 8,
               .theta = 100,
               .scaling = RopeScaling::kLongRope,
               .factor = 2,
               .original_max_position = 32,
               .short_factor = {1, 1, 1, 1},
               .long_factor = {1, 1, 1, 4}};
  EXPECT_EQ(angle(dynamic, 32), angle(plain, 32));
  EXPECT_LT(angle(dynamic, 33), angle(plain, 33));
  EXPECT_LT(angle(dynamic, 64), angle(dynamic, 33));
  EXPECT_DOUBLE_EQ(angle(longrope, 32), angle(plain, 32));
  EXPECT_DOUBLE_EQ(angle(longrope, 33), angle(plain, 33) / 4);
}

TEST(RopeFrequencies, OfAnOddSizeAreOneMore) {
  // transformers: 1 / theta ** (torch.arange(0, 5, 2) / 5)
  const std::vector<double> f = rope_frequencies({.rotary_dim = 5, .theta = 100});
  ASSERT_EQ(f.size(), 3u);
  EXPECT_EQ(turned_dims({.rotary_dim = 5}), 6);
  EXPECT_DOUBLE_EQ(f[0], 1);
  EXPECT_DOUBLE_EQ(f[1], std::pow(100.0, -2.0 / 5));
  EXPECT_DOUBLE_EQ(f[2], std::pow(100.0, -4.0 / 5));
}

TEST(RopeFrequencies, RefuseOptionsOutOfRange) {
  EXPECT_THROW(rope_frequencies({.rotary_dim = -1}), ConfigError);
  EXPECT_THROW(rope_frequencies({.rotary_dim = 8, .theta = 0}), ConfigError);
  EXPECT_THROW(rope_frequencies({.rotary_dim = 8, .scaling = RopeScaling::kLinear, .factor = 0.5}),
               ConfigError);
  EXPECT_THROW(
      rope_frequencies(
          {.rotary_dim = 8, .scaling = RopeScaling::kLlama3, .factor = 2, .low_freq_factor = 4}),
      ConfigError);
  EXPECT_THROW(rope_frequencies({.rotary_dim = 2, .scaling = RopeScaling::kDynamic}), ConfigError);
  EXPECT_THROW(rope_frequencies({.rotary_dim = 8,
                                 .scaling = RopeScaling::kLongRope,
                                 .short_factor = {1, 1, 1, 1},
                                 .long_factor = {1, 1, 1}}),
               ConfigError);
}

} // namespace

} // namespace pentatron::kernels
