#include "pentatron/checkpoint/gguf/quants.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "pentatron/base/safetensors.h"

namespace pentatron::checkpoint {
namespace {

const GgufFile& golden() {
  static const GgufFile file(std::string(PENTATRON_TEST_DATA) + "/gguf/python.gguf");
  return file;
}

std::vector<float> stored_floats(const std::string& name) {
  const GgufTensor& tensor = *golden().find(name);
  std::vector<float> out(tensor.data.size() / sizeof(float));
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

/// The same bits, or both NaN: which NaN an operation gives differs between machines.
void expect_same(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i]))
        << "element " << i << ": " << got[i] << " and " << expected[i];
  }
}

class EveryType : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Types, EveryType,
                         testing::Values("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K",
                                         "MXFP4", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "IQ4_NL",
                                         "IQ4_XS"));

TEST_P(EveryType, IsReadAsThePythonPackageDoes) {
  const GgufTensor& tensor = *golden().find(GetParam());
  ASSERT_TRUE(can_dequantize(tensor.type));
  const std::vector<float> expected = stored_floats(std::string(GetParam()) + ".values");
  std::vector<float> got(expected.size());
  dequantize(tensor.type, tensor.data, got);
  expect_same(got, expected);
}

class WrittenType : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Types, WrittenType, testing::Values("F16", "BF16", "Q8_0"));

TEST_P(WrittenType, IsWrittenAsThePythonPackageDoes) {
  const std::vector<float> plain = stored_floats("plain");
  const GgufTensor& expected = *golden().find(std::string("plain.") + GetParam());
  ASSERT_TRUE(can_quantize(expected.type));
  std::vector<std::byte> got(expected.data.size());
  quantize(expected.type, plain, got);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], expected.data[i]) << "byte " << i;
}

TEST(Quants, OtherTypesAreKnownToBeUnknown) {
  EXPECT_FALSE(can_dequantize(static_cast<GgmlType>(21))); // IQ3_S
  EXPECT_FALSE(can_dequantize(static_cast<GgmlType>(99)));
  EXPECT_FALSE(can_quantize(GgmlType::kQ4_0));
}

TEST(Quants, EveryHalfSurvivesTheWayToFloatAndBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits)
    ASSERT_EQ(half_of_float(float_of_half(static_cast<uint16_t>(bits))), bits);
}

TEST(Quants, TellsValuesThatATypeCannotHold) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> large = {1, 65519, 65520}, not_finite = {0, kInf}, widest = {3.4e38F};
  EXPECT_EQ(first_lost(GgmlType::kF16, large), 2u);
  EXPECT_EQ(first_lost(GgmlType::kBF16, large), 3u);
  EXPECT_EQ(first_lost(GgmlType::kBF16, widest), 0u);
  EXPECT_EQ(first_lost(GgmlType::kF32, widest), 1u);
  EXPECT_EQ(first_lost(GgmlType::kF16, not_finite), 2u);
  EXPECT_EQ(first_lost(GgmlType::kQ8_0, not_finite), 1u);
  EXPECT_EQ(first_lost(GgmlType::kQ8_0, large), 3u);
  EXPECT_EQ(first_lost(GgmlType::kQ8_0, widest), 0u);
  for (const GgmlType type : {GgmlType::kQ4_K, GgmlType::kQ6_K}) {
    EXPECT_EQ(first_lost(type, not_finite), 1u);
    EXPECT_EQ(first_lost(type, large), 3u);
    EXPECT_EQ(first_lost(type, widest), 0u);
  }
}

class KQuants : public testing::TestWithParam<GgmlType> {
 protected:
  static std::vector<std::byte> quantized(const std::vector<float>& values) {
    std::vector<std::byte> blocks(values.size() / 256 * ggml_block(GetParam())->bytes);
    quantize(GetParam(), values, blocks);
    return blocks;
  }
  static std::vector<float> round_trip(const std::vector<float>& values) {
    std::vector<float> back(values.size());
    dequantize(GetParam(), quantized(values), back);
    return back;
  }
};
INSTANTIATE_TEST_SUITE_P(Types, KQuants, testing::Values(GgmlType::kQ4_K, GgmlType::kQ6_K),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(KQuants, AreTheBytesOfLlamaCpp) {
  const SafetensorsFile file(std::string(PENTATRON_TEST_DATA) + "/gguf/k_quants.safetensors");
  const SafeTensor& x = file.at("x");
  std::vector<float> values(x.data.size() / sizeof(float));
  std::memcpy(values.data(), x.data.data(), x.data.size());
  const SafeTensor& expected = file.at(name_of(GetParam()));
  const std::vector<std::byte> got = quantized(values);
  ASSERT_EQ(got.size(), expected.data.size());
  const size_t block = ggml_block(GetParam())->bytes;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(got[i], expected.data[i]) << "byte " << i % block << " of block " << i / block;
}

TEST_P(KQuants, ExtremeValuesGiveFiniteOnes) {
  const float most = 65504.0F * 30;
  for (const float value : {0.0F, 1e-45F, -1e-45F, 1e-38F, 1e-30F, 1e-20F, 1e-7F, most, -most}) {
    std::vector<float> values(256, value);
    std::vector<float> back = round_trip(values);
    for (const float v : back) EXPECT_NEAR(v, value, 1e-3F * std::fabs(value) + 1e-6F);
    for (size_t i = 0; i < 256; i += 3) values[i] = -value; // and both signs, with zeros
    for (size_t i = 0; i < 256; i += 5) values[i] = 0;
    back = round_trip(values);
    for (size_t i = 0; i < 256; ++i)
      EXPECT_NEAR(back[i], values[i], 0.1F * std::fabs(value) + 1e-6F) << value << " " << i;
  }
}

/// As gguf.quants of the Python package gguf 0.19.0.
TEST(Mxfp4Blocks, AreTheirFormula) {
  const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int exponent = 0; exponent < 253; ++exponent) {
    std::vector<std::byte> block = {static_cast<std::byte>(exponent)};
    for (int i = 0; i < 16; ++i) block.push_back(static_cast<std::byte>(i | (15 - i) << 4));
    std::vector<float> values(32);
    dequantize(GgmlType::kMXFP4, block, values);
    for (int i = 0; i < 32; ++i) {
      const int code = i < 16 ? i : 31 - i;
      const double value = (code < 8 ? 1 : -1) * std::ldexp(magnitudes[code % 8], exponent - 127);
      EXPECT_EQ(values[static_cast<size_t>(i)], static_cast<float>(value)) << exponent << " " << i;
    }
  }
}

} // namespace
} // namespace pentatron::checkpoint
