/// The section model.rope_scaling: rotary positions beyond the context that a model was trained
/// with.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "pentatron/config/field.h"
#include "pentatron/models/model_enums.h"

namespace pentatron::models {

struct RopeScalingConfig {
  RopeScalingType type = RopeScalingType::kNone;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 8192;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  std::vector<double> short_factor;
  std::vector<double> long_factor;

  bool operator==(const RopeScalingConfig&) const = default;

  static constexpr auto fields() {
    using C = RopeScalingConfig;
    using config::field;
    return std::tuple{
        field("type", &C::type,
              "method that extends the context of rotary position embeddings; dynamic: in runs "
              "with sequences longer than model.max_position_embeddings, up to factor times, the "
              "base grows with the longest sequence"),
        field("factor", &C::factor, "new context length divided by the original context length")
            .min(1),
        field("original_max_position_embeddings", &C::original_max_position_embeddings,
              "llama3, yarn and longrope: context length of the model before scaling")
            .positive()
            .unit("tokens"),
        field("low_freq_factor", &C::low_freq_factor,
              "llama3: wavelengths above the original context length / low_freq_factor are scaled "
              "by the full factor")
            .positive(),
        field("high_freq_factor", &C::high_freq_factor,
              "llama3: wavelengths below the original context length / high_freq_factor are not "
              "scaled")
            .positive(),
        field("beta_fast", &C::beta_fast,
              "yarn: dimensions that rotate more than this many times over the original context "
              "are not scaled")
            .positive(),
        field("beta_slow", &C::beta_slow,
              "yarn: dimensions that rotate fewer than this many times over the original context "
              "are scaled by the full factor")
            .positive(),
        field(
            "truncate", &C::truncate,
            "yarn: round the ends of the ramp between scaled and unscaled dimensions to integers"),
        field("attention_factor", &C::attention_factor,
              "yarn and longrope: factor applied to cos and sin; default: computed from factor")
            .positive(),
        field("mscale", &C::mscale,
              "yarn: coefficient in the numerator of DeepSeek's attention factor"),
        field("mscale_all_dim", &C::mscale_all_dim,
              "yarn: coefficient in the denominator of DeepSeek's attention factor"),
        field("short_factor", &C::short_factor,
              "longrope: divisors of the frequencies, one for each pair of dimensions, if the "
              "longest sequence of the run has at most original_max_position_embeddings tokens")
            .positive(),
        field("long_factor", &C::long_factor,
              "longrope: divisors of the frequencies, one for each pair of dimensions, if the "
              "longest sequence of the run has more than original_max_position_embeddings tokens")
            .positive()};
  }
};

} // namespace pentatron::models
