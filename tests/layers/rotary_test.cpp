// The rotary table and its use on strided heads, against complex numbers and published frequencies.
#include "pentatron/layers/rotary.h"

#include "tests/kernels/rope_options.h"
#include "tests/nn/op_fixture.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <complex>
#include <fstream>

namespace pentatron::layers {
namespace {

using kernels::RopeOptions;
using kernels::RopeScaling;
using test::expect_close;
using test::randn;

/// Rotates by the definition: pair i of token t turns by positions[t] * frequencies[i].
at::Tensor plain_rotation(const at::Tensor& x, const std::vector<int32_t>& positions,
                          const std::vector<double>& frequencies, double factor, bool interleaved) {
  at::Tensor y = x.contiguous().clone();
  auto out = y.accessor<double, 3>();
  const auto half = static_cast<int64_t>(frequencies.size());
  for (int64_t t = 0; t < x.size(0); ++t) {
    for (int64_t n = 0; n < x.size(1); ++n) {
      for (int64_t i = 0; i < half; ++i) {
        const int64_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
        const auto turned = std::complex(out[t][n][a], out[t][n][b]) *
                            std::polar(factor, positions[static_cast<size_t>(t)] *
                                                   frequencies[static_cast<size_t>(i)]);
        out[t][n][a] = turned.real();
        out[t][n][b] = turned.imag();
      }
    }
  }
  return y;
}

std::vector<double> plain_frequencies(const RopeOptions& o) {
  std::vector<double> f;
  for (int64_t i = 0; 2 * i < o.rotary_dim; ++i) {
    double w = std::pow(o.theta, -2.0 * static_cast<double>(i) / static_cast<double>(o.rotary_dim));
    if (o.scaling == RopeScaling::kLinear) w /= o.factor;
    if (o.scaling == RopeScaling::kLlama3) {
      const double turns = static_cast<double>(o.original_max_position) * w / (2 * M_PI);
      const double keep = std::clamp(
          (turns - o.low_freq_factor) / (o.high_freq_factor - o.low_freq_factor), 0.0, 1.0);
      w = keep * w + (1 - keep) * w / o.factor;
    }
    f.push_back(w);
  }
  return f;
}

at::Tensor positions_tensor(const std::vector<int32_t>& positions) {
  return at::tensor(positions, at::kInt);
}

struct RotaryCase {
  std::string name;
  RopeOptions options;
  int64_t head_size = 16;
};

void PrintTo(const RotaryCase& c, std::ostream* os) {
  *os << c.name;
}

class Rotary : public testing::TestWithParam<RotaryCase> {};

TEST_P(Rotary, TurnsPairsOfStridedHeadsByPositionTimesFrequency) {
  const RotaryCase& c = GetParam();
  const std::vector<double> frequencies = plain_frequencies(c.options);
  const std::vector<int32_t> positions = {0, 1, 39, 7, 7};
  for (const bool interleaved : {false, true}) {
    const RotaryTable table = RotaryTable::make(c.options, interleaved, 40, at::kDouble, at::kCPU);
    ASSERT_EQ(table.cos.size(0), 40);
    const int64_t turned = (c.options.rotary_dim + 1) / 2 * 2;
    ASSERT_EQ(table.cos.size(1), turned / 2);
    const at::Tensor fused = randn({5, 3 * c.head_size + 4}, 1);
    const at::Tensor x = fused.narrow(1, 2, 3 * c.head_size).unflatten(1, {3, c.head_size});
    const at::Tensor original = x.clone();
    const at::Tensor expected = plain_rotation(x, positions, frequencies, 1.0, interleaved);
    const at::Tensor y = at::empty({5, 3, c.head_size}, at::kDouble);
    rotate(y, x, table, positions_tensor(positions), false);
    expect_close(y, expected, {1e-12, 1e-12});
    expect_close(y.narrow(2, turned, c.head_size - turned),
                 x.narrow(2, turned, c.head_size - turned));
    expect_close(x[0], y[0]);                                // position 0 turns nothing
    rotate(x, x, table, positions_tensor(positions), false); // in place, beside others' memory
    expect_close(x, expected, {1e-12, 1e-12});
    rotate(x, x, table, positions_tensor(positions), true);
    expect_close(x, original, {1e-12, 1e-12});
    expect_close(fused.narrow(1, 0, 2), randn({5, 3 * c.head_size + 4}, 1).narrow(1, 0, 2));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Scalings, Rotary,
    testing::Values(RotaryCase{"plain", {.rotary_dim = 16}},
                    RotaryCase{"partial", {.rotary_dim = 6, .theta = 5e5}},
                    RotaryCase{"odd", {.rotary_dim = 5, .theta = 5e5}},
                    RotaryCase{"linear",
                               {.rotary_dim = 16, .scaling = RopeScaling::kLinear, .factor = 4}},
                    RotaryCase{"llama3",
                               {.rotary_dim = 16,
                                .theta = 500000,
                                .scaling = RopeScaling::kLlama3,
                                .factor = 8,
                                .original_max_position = 64}},
                    RotaryCase{"llama3_partial",
                               {.rotary_dim = 8,
                                .theta = 10000,
                                .scaling = RopeScaling::kLlama3,
                                .factor = 32,
                                .original_max_position = 8192}}),
    [](const auto& info) { return info.param.name; });

TEST(RotaryTable, HoldsTheAnglesOfHuggingFacesFrequencies) {
  std::ifstream in(PENTATRON_TEST_DATA "/kernels/rope_frequencies.json");
  const auto cases = nlohmann::json::parse(in);
  int yarn = 0;
  for (const auto& entry : cases) {
    const RopeOptions options = kernels::rope_options_of(entry["options"]);
    yarn += options.scaling == RopeScaling::kYarn;
    const RotaryTable table = RotaryTable::make(options, false, 33, at::kDouble, at::kCPU);
    const auto frequencies = entry["inv_freq"].get<std::vector<double>>();
    const double factor = entry["attention_factor"];
    const at::Tensor angles =
        at::outer(at::arange(33, at::kDouble), at::tensor(frequencies, at::kDouble));
    expect_close(table.cos, angles.cos() * factor, {0, 1e-11});
    expect_close(table.sin, angles.sin() * factor, {0, 1e-11});
    const RotaryTable narrow = RotaryTable::make(options, false, 33, at::kFloat, at::kCPU);
    EXPECT_TRUE(test::same_bits(narrow.cos, table.cos.to(at::kFloat)));
  }
  EXPECT_GE(yarn, 4);
}

TEST(RotaryTable, ScoresDependOnTheDistanceOnly) {
  const RotaryTable table = RotaryTable::make({.rotary_dim = 8}, true, 100, at::kDouble, at::kCPU);
  const at::Tensor q = randn({1, 1, 8}, 1), k = randn({1, 1, 8}, 2);
  const auto score = [&](int32_t i, int32_t j) {
    const at::Tensor a = at::empty_like(q), b = at::empty_like(k);
    rotate(a, q, table, positions_tensor({i}), false);
    rotate(b, k, table, positions_tensor({j}), false);
    return (a * b).sum().item<double>();
  };
  EXPECT_NEAR(score(5, 2), score(98, 95), 1e-12);
  EXPECT_GT(std::abs(score(5, 2) - score(5, 3)), 1e-3);
}

} // namespace
} // namespace pentatron::layers
