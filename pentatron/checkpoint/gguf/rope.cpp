#include "pentatron/checkpoint/gguf/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pentatron::checkpoint {

namespace {

double wavelength(size_t i, double theta, int64_t head_size) {
  const double exponent = 2 * static_cast<double>(i) / static_cast<double>(head_size);
  return 2 * std::numbers::pi * std::pow(theta, exponent);
}

/// Between the plateaus 1/divisor is linear in 1/wavelength, so two of them give the parameters.
std::optional<Llama3Rope> fit(std::span<const float> divisors, double theta, int64_t head_size,
                              double factor) {
  std::vector<size_t> between;
  for (size_t i = 0; i < divisors.size(); ++i) {
    if (divisors[i] > 1.0001 && divisors[i] < 0.9999 * factor) between.push_back(i);
  }
  if (between.size() < 2) return std::nullopt;
  const auto smooth = [&](size_t i) {
    return (1 / static_cast<double>(divisors[i]) - 1 / factor) / (1 - 1 / factor);
  };
  const size_t i = between.front(), j = between.back();
  const double x = 1 / wavelength(i, theta, head_size), y = 1 / wavelength(j, theta, head_size);
  const double slope = (smooth(i) - smooth(j)) / (x - y); // original / (high - low)
  const double start = slope * x - smooth(i);             // low / (high - low)
  if (!(start > 1e-6) || !(slope > 0) || slope > 1e9 * start) return std::nullopt;
  // Whoever chose them chose round numbers, and the divisors have 7 digits.
  const double high = std::round((1 + 1 / start) * 1000) / 1000;
  return Llama3Rope{.factor = factor,
                    .low_freq_factor = 1,
                    .high_freq_factor = high,
                    .original_positions = std::llround(slope * (high - 1))};
}

} // namespace

double longrope_attention(double factor, int64_t original) {
  if (factor <= 1) return 1;
  return std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original)));
}

std::vector<float> llama3_divisors(const Llama3Rope& rope, double theta, int64_t head_size) {
  std::vector<float> divisors(static_cast<size_t>(head_size / 2));
  const auto original = static_cast<double>(rope.original_positions);
  const double low = rope.low_freq_factor, high = rope.high_freq_factor;
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double w = wavelength(i, theta, head_size);
    double divisor = 1;
    if (w > original / low) {
      divisor = rope.factor;
    } else if (w >= original / high) {
      const double smooth = (original / w - low) / (high - low);
      divisor = 1 / ((1 - smooth) / rope.factor + smooth);
    }
    divisors[i] = static_cast<float>(divisor);
  }
  return divisors;
}

bool agrees(const Llama3Rope& rope, std::span<const float> divisors, double theta,
            int64_t head_size) {
  const std::vector<float> own = llama3_divisors(rope, theta, head_size);
  return std::ranges::equal(
      own, divisors, [](float a, float b) { return std::fabs(a - b) <= 1e-5f * std::fabs(a); });
}

std::optional<Llama3Rope> find_llama3_rope(std::span<const float> divisors, double theta,
                                           int64_t head_size) {
  if (divisors.size() != static_cast<size_t>(head_size / 2) || divisors.empty())
    return std::nullopt;
  const double factor = divisors.back();
  if (!(factor >= 1) || !std::isfinite(factor)) return std::nullopt;
  // Llama 3's own values first, then lengths that are powers of two.
  Llama3Rope rope{.factor = factor};
  if (agrees(rope, divisors, theta, head_size)) return rope;
  for (rope.original_positions = 16; rope.original_positions <= 1 << 24;
       rope.original_positions *= 2) {
    if (agrees(rope, divisors, theta, head_size)) return rope;
  }
  const auto fitted = fit(divisors, theta, head_size, factor);
  if (fitted && agrees(*fitted, divisors, theta, head_size)) return fitted;
  return std::nullopt;
}

} // namespace pentatron::checkpoint
