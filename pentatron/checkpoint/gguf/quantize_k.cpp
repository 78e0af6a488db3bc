#include "pentatron/checkpoint/gguf/quantize_k.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "pentatron/checkpoint/gguf/quants.h"

namespace pentatron::checkpoint {

namespace {

constexpr float kTiny = 1e-15F;    ///< below, a group of Q6_K is zero
constexpr float kNoRange = 1e-30F; ///< below, a group of Q4_K is constant: quotients stay finite

/// To nearest, ties to even.
int nearest(float value) {
  return static_cast<int>(std::nearbyint(value));
}

float stored_half(float value, uint8_t* to) {
  const uint16_t bits = half_of_float(value);
  std::memcpy(to, &bits, 2);
  return float_of_half(bits);
}

/// value = scale q - min of one group.
struct ScaleAndMin {
  float scale = 0, min = 0; ///< min >= 0
};

using Group32 = std::span<const float, 32>;
using Codes32 = std::array<uint8_t, 32>;

constexpr int kMost4 = 15; ///< largest code of Q4_K

/// Codes of a group on the grid from `lowest` with `inverse` codes per unit.
Codes32 codes_on(Group32 x, float inverse, float lowest) {
  Codes32 codes;
  for (size_t i = 0; i < x.size(); ++i)
    codes[i] = static_cast<uint8_t>(std::clamp(nearest(inverse * (x[i] - lowest)), 0, kMost4));
  return codes;
}

float weighted_error(Group32 x, Group32 weights, const Codes32& codes, float scale, float lowest) {
  float error = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    float difference = scale * static_cast<float>(codes[i]) + lowest - x[i];
    difference *= difference;
    error += weights[i] * difference;
  }
  return error;
}

/// The line through (code, value) with the least weighted error, with a value of at most 0 at code
/// 0; false if the codes do not determine one.
bool fit_line(Group32 x, Group32 weights, const Codes32& codes, float sum_w, float sum_wx,
              float& scale, float& lowest) {
  float sum_l = 0, sum_l2 = 0, sum_xl = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto code = static_cast<float>(codes[i]);
    sum_l += weights[i] * code;
    sum_l2 += weights[i] * code * code;
    sum_xl += weights[i] * code * x[i];
  }
  const float determinant = sum_w * sum_l2 - sum_l * sum_l;
  if (!(determinant > 0)) return false;
  scale = (sum_w * sum_xl - sum_wx * sum_l) / determinant;
  lowest = (sum_l2 * sum_wx - sum_l * sum_xl) / determinant;
  if (lowest > 0) {
    lowest = 0;
    scale = sum_xl / sum_l2;
  }
  return true;
}

/// The best of the grid from the smallest to the largest value and 21 grids a little coarser or
/// finer, each with the line that fits its codes.
ScaleAndMin search_line(Group32 x, Codes32& best_codes) {
  std::array<float, 32> weights_;
  float sum_squares = 0;
  for (const float value : x) sum_squares += value * value;
  const float rms = std::sqrt(sum_squares / 32);
  for (size_t i = 0; i < x.size(); ++i) weights_[i] = rms + std::fabs(x[i]);
  const Group32 weights(weights_);
  float lowest = x[0], highest = x[0], sum_w = weights[0], sum_wx = sum_w * x[0];
  for (size_t i = 1; i < x.size(); ++i) {
    lowest = std::min(lowest, x[i]);
    highest = std::max(highest, x[i]);
    sum_w += weights[i];
    sum_wx += weights[i] * x[i];
  }
  lowest = std::min(lowest, 0.0F);
  if (highest - lowest < kNoRange) {
    best_codes = {};
    return {0, -lowest};
  }
  float inverse = static_cast<float>(kMost4) / (highest - lowest);
  float scale = 1 / inverse;
  best_codes = codes_on(x, inverse, lowest);
  float least = weighted_error(x, weights, best_codes, scale, lowest);
  for (int step = 0; step <= 20; ++step) {
    // The grid starts where the best line so far does.
    inverse =
        (-1.0F + 0.1F * static_cast<float>(step) + static_cast<float>(kMost4)) / (highest - lowest);
    const Codes32 codes = codes_on(x, inverse, lowest);
    float this_scale = 0, this_lowest = 0;
    if (!fit_line(x, weights, codes, sum_w, sum_wx, this_scale, this_lowest)) continue;
    const float error = weighted_error(x, weights, codes, this_scale, this_lowest);
    if (!(error < least)) continue;
    best_codes = codes;
    least = error;
    scale = this_scale;
    lowest = this_lowest;
  }
  return {scale, -lowest};
}

/// Scale of one group of Q6_K, with its codes -32..31 plus 32: of the grid on which the largest
/// value has the code -32 and 18 grids near it, the one that explains most of sum x^4.
float search_scale(std::span<const float, 16> x, std::span<uint8_t, 16> best_codes) {
  float extreme = 0;
  for (const float value : x)
    if (std::fabs(value) > std::fabs(extreme)) extreme = value;
  std::ranges::fill(best_codes, uint8_t{0});
  if (std::fabs(extreme) < kTiny) return 0;
  float scale = 0, best = 0;
  std::array<uint8_t, 16> codes;
  const auto look_at = [&](float offset, bool first) {
    const float inverse = -(32.0F + offset) / extreme;
    float sum_lx = 0, sum_l2 = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const int code = std::clamp(nearest(inverse * x[i]), -32, 31);
      const auto l = static_cast<float>(code);
      const float weight = x[i] * x[i];
      codes[i] = static_cast<uint8_t>(code + 32);
      sum_lx += weight * x[i] * l;
      sum_l2 += weight * l * l;
    }
    if (!first && !(sum_l2 > 0 && sum_lx * sum_lx > best * sum_l2)) return;
    std::ranges::copy(codes, best_codes.begin());
    scale = sum_l2 != 0 ? sum_lx / sum_l2 : 0.0F;
    best = scale * sum_lx;
  };
  look_at(0, true);
  for (int step = -9; step <= 9; ++step)
    if (step != 0) look_at(0.1F * static_cast<float>(step), false);
  return scale;
}

} // namespace

void quantize_q4_k(const float* values, uint8_t* block) {
  std::array<Codes32, 8> codes;
  std::array<ScaleAndMin, 8> groups;
  float largest_scale = 0, largest_min = 0;
  for (size_t j = 0; j < 8; ++j) {
    groups[j] = search_line(Group32(values + 32 * j, 32), codes[j]);
    largest_scale = std::max(largest_scale, groups[j].scale);
    largest_min = std::max(largest_min, groups[j].min);
  }
  const float per_scale = largest_scale > 0 ? 63.0F / largest_scale : 0.0F;
  const float per_min = largest_min > kNoRange ? 63.0F / largest_min : 0.0F;
  const float d = stored_half(largest_scale / 63.0F, block);
  const float m = stored_half(largest_min / 63.0F, block + 2);
  uint8_t* const packed = block + 4;
  std::fill_n(packed, 12, uint8_t{0});
  for (size_t j = 0; j < 8; ++j) {
    const int scale = std::min(63, nearest(per_scale * groups[j].scale));
    const int min = std::min(63, nearest(per_min * groups[j].min));
    if (j < 4) {
      packed[j] = static_cast<uint8_t>(packed[j] | scale);
      packed[j + 4] = static_cast<uint8_t>(packed[j + 4] | min);
    } else {
      packed[j + 4] = static_cast<uint8_t>((scale & 0xF) | (min & 0xF) << 4);
      packed[j - 4] = static_cast<uint8_t>(packed[j - 4] | (scale >> 4) << 6);
      packed[j] = static_cast<uint8_t>(packed[j] | (min >> 4) << 6);
    }
    // The codes of what a reader will see; without a scale they do not matter.
    const float seen = d * static_cast<float>(scale);
    if (seen == 0) continue;
    const float seen_min = m * static_cast<float>(min);
    for (size_t i = 0; i < 32; ++i)
      codes[j][i] = static_cast<uint8_t>(
          std::clamp(nearest((values[32 * j + i] + seen_min) / seen), 0, kMost4));
  }
  uint8_t* const out = block + 16;
  for (size_t j = 0; j < 4; ++j)
    for (size_t i = 0; i < 32; ++i)
      out[32 * j + i] = static_cast<uint8_t>(codes[2 * j][i] | codes[2 * j + 1][i] << 4);
}

void quantize_q6_k(const float* values, uint8_t* block) {
  std::array<uint8_t, 256> codes;
  std::array<float, 16> scales;
  float extreme = 0;
  for (size_t g = 0; g < 16; ++g) {
    scales[g] = search_scale(std::span<const float, 16>(values + 16 * g, 16),
                             std::span<uint8_t, 16>(codes.data() + 16 * g, 16));
    if (std::fabs(scales[g]) > std::fabs(extreme)) extreme = scales[g];
  }
  std::fill_n(block, 210, uint8_t{0});
  if (std::fabs(extreme) < kTiny) return;
  const float inverse = -128.0F / extreme;
  const float d = stored_half(1 / inverse, block + 208);
  for (size_t g = 0; g < 16; ++g) {
    const int scale = std::min(127, nearest(inverse * scales[g]));
    block[192 + g] = static_cast<uint8_t>(static_cast<int8_t>(scale));
    const float seen = d * static_cast<float>(scale);
    if (seen == 0) continue;
    for (size_t i = 16 * g; i < 16 * (g + 1); ++i)
      codes[i] = static_cast<uint8_t>(std::clamp(nearest(values[i] / seen), -32, 31) + 32);
  }
  for (size_t half = 0; half < 2; ++half) {
    const uint8_t* const l = codes.data() + 128 * half;
    for (size_t i = 0; i < 32; ++i) {
      block[64 * half + i] = static_cast<uint8_t>((l[i] & 0xF) | (l[i + 64] & 0xF) << 4);
      block[64 * half + i + 32] = static_cast<uint8_t>((l[i + 32] & 0xF) | (l[i + 96] & 0xF) << 4);
      block[128 + 32 * half + i] = static_cast<uint8_t>(
          l[i] >> 4 | (l[i + 32] >> 4) << 2 | (l[i + 64] >> 4) << 4 | (l[i + 96] >> 4) << 6);
    }
  }
}

} // namespace pentatron::checkpoint
