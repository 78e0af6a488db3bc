/// Llama 3's scaling of rotary frequencies as GGUF files hold it: one divisor a frequency, in the
/// tensor rope_freqs.weight, without the parameters that they were made of.
///
/// With w the wavelength of a frequency: 1 where w < original / high, `factor` where w > original /
/// low, and between them 1 / ((1 - s) / factor + s) with s = (original / w - low) / (high - low).
/// Source: transformers, modeling_rope_utils.py (llama3); llama.cpp, conversion/llama.py.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace pentatron::checkpoint {

inline constexpr const char* kRopeFreqs = "rope_freqs.weight";
/// LongRoPE's divisors for long and for short texts, rotary size / 2 each.
inline constexpr const char *kLongFactors = "rope_factors_long.weight",
                            *kShortFactors = "rope_factors_short.weight";

struct Llama3Rope {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_positions = 8192;
};

/// Keys that store the parameters in addition to the divisors, because the divisors do not always
/// determine them. Other programs read only the divisors.
inline constexpr std::array kLlama3Keys = {
    "rope.scaling.llama3_factor", "rope.scaling.llama3_low_freq_factor",
    "rope.scaling.llama3_high_freq_factor", "rope.scaling.llama3_original_context_length"};

/// LongRoPE's factor of cos and sin for texts that are `factor` times as long as the `original`:
/// sqrt(1 + log(factor) / log(original)), at least 1.
double longrope_attention(double factor, int64_t original);

/// head_size / 2 divisors.
std::vector<float> llama3_divisors(const Llama3Rope& rope, double theta, int64_t head_size);

/// Whether they give these divisors, as exactly as arithmetic in float32 does.
bool agrees(const Llama3Rope& rope, std::span<const float> divisors, double theta,
            int64_t head_size);

/// The parameters that give these divisors; nothing if no parameters do. They are not unique: low,
/// high and original can be multiplied by a common factor. The result has low = 1.
std::optional<Llama3Rope> find_llama3_rope(std::span<const float> divisors, double theta,
                                           int64_t head_size);

} // namespace pentatron::checkpoint
