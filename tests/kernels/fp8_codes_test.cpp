#include "pentatron/kernels/quantize/fp8_codes.h"

#include "pentatron/base/error.h"
#include "pentatron/kernels/quantize/quantize.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {
namespace {

using namespace testing;

constexpr QuantRecipe kTensorwise[] = {QuantRecipe::kTensorwiseE4m3, QuantRecipe::kTensorwiseE5m2};

/// Normal numbers of very different sizes, zeros of both signs, and where `finite` is false
/// infinities and NaN.
Array hard(DType dtype, int64_t n, bool finite, bool aligned) {
  const Stream random(3, "hard");
  Array x(dtype, n, 0.0, aligned);
  x.fill([&](int64_t i) {
    const auto place = static_cast<uint64_t>(i);
    if (i % 97 == 5) return i % 2 != 0 ? 0.0 : -0.0;
    if (!finite && i % 301 == 7) return i % 2 != 0 ? kNaN : -kInf;
    return random.normal(place) *
           std::ldexp(1.0, static_cast<int>(random.below(30, place, 1)) - 15);
  });
  return x;
}

struct CodesCase {
  int64_t rows, cols, stride;
  bool transposed;
};
/// Blocks that do not divide, rows that are filled up, rows that can be read by 16 bytes.
const CodesCase kCodesCases[] = {{3, 5, 5, false},      {7, 48, 48, false},    {1, 1, 16, false},
                                 {33, 160, 160, false}, {5, 19, 32, false},    {0, 16, 16, false},
                                 {3, 5, 16, true},      {130, 72, 144, true},  {200, 64, 208, true},
                                 {1, 1, 1, true},       {128, 130, 128, true}, {0, 16, 0, true},
                                 {17, 32, 17, true}};

TEST(Fp8Codes, EveryEntryGivesTheSameBits) {
  for (const DType dtype : kAllTypes)
    for (const CodesCase& one : kCodesCases)
      for (const QuantRecipe recipe : kTensorwise)
        for (const bool finite : {true, false})
          for (const float given : {-1.0f, 3.0f, 0.0f, 1e-39f}) {
            const bool aligned = one.rows % 2 == 1;
            const Array x = hard(dtype, one.rows * one.cols, finite, aligned);
            const int64_t out_rows = one.transposed ? one.cols : one.rows;
            std::vector<uint8_t> expected;
            float expected_scale = 0;
            const auto run = [&](const auto& raise, const auto& encode) {
              Array amax(DType::kFloat32, 1), scale(DType::kFloat32, 1);
              if (given >= 0)
                amax.set(0, given);
              else if (x.size() > 0)
                raise(RaiseAmax{dtype, x.size(), x.data(), static_cast<float*>(amax.data())});
              GuardedMemory codes(static_cast<size_t>(out_rows * one.stride));
              Fp8Codes args = {.recipe = recipe,
                               .dtype = dtype,
                               .rows = one.rows,
                               .cols = one.cols,
                               .transposed = one.transposed,
                               .stride = one.stride,
                               .x = x.data(),
                               .amax = static_cast<const float*>(amax.data()),
                               .codes = reinterpret_cast<uint8_t*>(codes.data()),
                               .scale = static_cast<float*>(scale.data())};
              encode(args);
              const auto* const begin = reinterpret_cast<const uint8_t*>(codes.data());
              return std::pair(std::vector<uint8_t>(begin, begin + out_rows * one.stride),
                               static_cast<float>(scale[0]));
            };
            std::tie(expected, expected_scale) =
                run([](const RaiseAmax& a) { reference_of(raise_amax_entries()).run(a, {}); },
                    [](const Fp8Codes& a) { reference_of(fp8_codes_entries()).run(a, {}); });
            const std::vector<Entry<Fp8Codes>> entries = fast_entries(fp8_codes_entries(), {});
            for (size_t i = 0; i < entries.size(); ++i) {
              const auto [codes, scale] = run(
                  [&](const RaiseAmax& a) { fast_entries(raise_amax_entries(), a)[i].run(a, {}); },
                  [&](const Fp8Codes& a) { entries[i].run(a, {}); });
              ASSERT_EQ(codes, expected)
                  << entries[i].name << ' ' << name(dtype) << ' ' << one.rows << 'x' << one.cols
                  << (one.transposed ? " transposed" : "");
              ASSERT_EQ(scale, expected_scale);
            }
          }
}

TEST(Fp8Codes, AreThoseOfTheRecipe) {
  const int64_t rows = 37, cols = 21, stride = 48;
  const Array x = hard(DType::kFloat32, rows * cols, true, false);
  for (const QuantRecipe recipe : kTensorwise) {
    std::vector<uint8_t> plain(rows * cols), codes(cols * stride, 1);
    float plain_scale = 0, scale = 0, amax = 0;
    quantize({.recipe = recipe,
              .rows = rows,
              .cols = cols,
              .x = x.data(),
              .codes = plain.data(),
              .tensor_scale = &plain_scale});
    reference_of(raise_amax_entries()).run({DType::kFloat32, rows * cols, x.data(), &amax}, {});
    reference_of(fp8_codes_entries())
        .run({.recipe = recipe,
              .rows = rows,
              .cols = cols,
              .transposed = true,
              .stride = stride,
              .x = x.data(),
              .amax = &amax,
              .codes = codes.data(),
              .scale = &scale},
             {});
    EXPECT_EQ(scale, plain_scale);
    for (int64_t c = 0; c < cols; ++c)
      for (int64_t r = 0; r < stride; ++r)
        ASSERT_EQ(codes[c * stride + r], r < rows ? plain[r * cols + c] : 0);
  }
}

TEST(Fp8Codes, AmaxIsRaisedAndNeverLowered) {
  for (const auto& entry : entries_for(raise_amax_entries(), {})) {
    const Array x = Array::of(DType::kFloat32, {1, -3, kNaN, 2});
    Array amax = Array::of(DType::kFloat32, {2.5});
    entry.run({DType::kFloat32, 4, x.data(), static_cast<float*>(amax.data())}, {});
    EXPECT_EQ(amax[0], 3) << entry.name;
    entry.run({DType::kFloat32, 1, x.data(), static_cast<float*>(amax.data())}, {});
    EXPECT_EQ(amax[0], 3) << entry.name;
  }
}

TEST(Fp8Codes, RefusesWhatDoesNotFit) {
  EXPECT_THROW(fp8_codes({.rows = 2, .cols = 5, .stride = 4}), ShapeError);
  EXPECT_THROW(fp8_codes({.rows = 5, .cols = 2, .transposed = true, .stride = 4}), ShapeError);
  EXPECT_THROW(fp8_codes({.rows = -1}), ShapeError);
  EXPECT_THROW(fp8_codes({.recipe = QuantRecipe::kMxfp8, .rows = 1, .cols = 1, .stride = 1}),
               ShapeError);
}

} // namespace
} // namespace pentatron::kernels
