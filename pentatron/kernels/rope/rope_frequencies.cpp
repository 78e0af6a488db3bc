#include "pentatron/kernels/rope/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pentatron/base/error.h"

namespace pentatron::kernels {

namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

void check(const RopeOptions& o) {
  if (o.rotary_dim < 0) raise<ConfigError>("rope: rotary_dim={} is negative", o.rotary_dim);
  if (!(o.theta > 0.0)) raise<ConfigError>("rope: theta={} is not positive", o.theta);
  if (o.scaling == RopeScaling::kNone) return;
  if (!(o.factor >= 1.0)) raise<ConfigError>("rope: scaling factor={} is below 1", o.factor);
  if (o.scaling == RopeScaling::kLinear) return;
  if (o.original_max_position <= 0)
    raise<ConfigError>("rope: original_max_position={} is not positive", o.original_max_position);
  if (o.scaling == RopeScaling::kLlama3 && !(o.low_freq_factor < o.high_freq_factor))
    raise<ConfigError>("rope: low_freq_factor={} is not below high_freq_factor={}",
                       o.low_freq_factor, o.high_freq_factor);
  if (o.scaling == RopeScaling::kYarn && !(o.theta > 1.0))
    raise<ConfigError>("rope: YaRN needs theta above 1, not {}", o.theta);
  if (o.scaling == RopeScaling::kDynamic && o.rotary_dim == 2)
    raise<ConfigError>("rope: dynamic scaling needs more than one pair of dimensions");
  if (o.scaling != RopeScaling::kLongRope) return;
  for (const std::vector<double>* factors : {&o.short_factor, &o.long_factor})
    if (std::ssize(*factors) != turned_dims(o) / 2)
      raise<ConfigError>("rope: {} factors for {} pairs of dimensions", factors->size(),
                         turned_dims(o) / 2);
}

/// Long waves are divided by the factor, short ones stay, those between are blended.
double llama3_scaled(double frequency, const RopeOptions& o) {
  const double original = static_cast<double>(o.original_max_position);
  const double wavelength = kTwoPi / frequency;
  if (wavelength > original / o.low_freq_factor) return frequency / o.factor;
  if (wavelength < original / o.high_freq_factor) return frequency;
  const double smooth =
      (original / wavelength - o.low_freq_factor) / (o.high_freq_factor - o.low_freq_factor);
  return (1.0 - smooth) * frequency / o.factor + smooth * frequency;
}

/// The pair (as a real number) that turns `rotations` times within the original context.
double yarn_pair(double rotations, const RopeOptions& o) {
  return static_cast<double>(o.rotary_dim) *
         std::log(static_cast<double>(o.original_max_position) / (rotations * kTwoPi)) /
         (2.0 * std::log(o.theta));
}

void scale_yarn(std::vector<double>& frequencies, const RopeOptions& o) {
  double low = yarn_pair(o.beta_fast, o), high = yarn_pair(o.beta_slow, o);
  if (o.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(o.rotary_dim - 1));
  if (low == high) high += 0.001; // as in the source: no division by zero
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double interpolated = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] =
        frequencies[i] / o.factor * interpolated + frequencies[i] * (1.0 - interpolated);
  }
}

/// The base for the longest sequence: it grows beyond the original context.
double dynamic_theta(const RopeOptions& o) {
  const double original = static_cast<double>(o.original_max_position),
               dim = static_cast<double>(o.rotary_dim), length = static_cast<double>(o.sequence);
  if (length <= original) return o.theta;
  return o.theta * std::pow(o.factor * length / original - (o.factor - 1.0), dim / (dim - 2.0));
}

} // namespace

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

int64_t turned_dims(const RopeOptions& o) {
  return (o.rotary_dim + 1) / 2 * 2;
}

std::vector<double> rope_frequencies(const RopeOptions& o) {
  check(o);
  std::vector<double> frequencies(turned_dims(o) / 2);
  const double theta = o.scaling == RopeScaling::kDynamic ? dynamic_theta(o) : o.theta;
  for (size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] =
        1.0 / std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(o.rotary_dim));
  switch (o.scaling) {
  case RopeScaling::kNone:
  case RopeScaling::kDynamic:
    break;
  case RopeScaling::kLinear:
    for (double& f : frequencies) f /= o.factor;
    break;
  case RopeScaling::kLlama3:
    for (double& f : frequencies) f = llama3_scaled(f, o);
    break;
  case RopeScaling::kYarn:
    scale_yarn(frequencies, o);
    break;
  case RopeScaling::kLongRope: {
    const auto& factors = o.sequence > o.original_max_position ? o.long_factor : o.short_factor;
    for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
    break;
  }
  }
  return frequencies;
}

double rope_attention_factor(const RopeOptions& o) {
  if (o.scaling != RopeScaling::kYarn && o.scaling != RopeScaling::kLongRope) return 1.0;
  if (o.attention_factor) return *o.attention_factor;
  if (o.scaling == RopeScaling::kLongRope)
    return o.factor <= 1.0
               ? 1.0
               : std::sqrt(1.0 + std::log(o.factor) /
                                     std::log(static_cast<double>(o.original_max_position)));
  // As in the source, a zero counts as absent.
  if (o.mscale.value_or(0.0) != 0.0 && o.mscale_all_dim.value_or(0.0) != 0.0)
    return yarn_mscale(o.factor, *o.mscale) / yarn_mscale(o.factor, *o.mscale_all_dim);
  return yarn_mscale(o.factor, 1.0);
}

RopeTables rope_tables(RopeOptions options, int64_t max_position) {
  options.sequence = max_position;
  const std::vector<double> frequencies = rope_frequencies(options);
  const double factor = rope_attention_factor(options);
  RopeTables tables;
  tables.cos.reserve(frequencies.size() * max_position);
  tables.sin.reserve(frequencies.size() * max_position);
  for (int64_t position = 0; position < max_position; ++position)
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      tables.cos.push_back(std::cos(angle) * factor);
      tables.sin.push_back(std::sin(angle) * factor);
    }
  return tables;
}

} // namespace pentatron::kernels
