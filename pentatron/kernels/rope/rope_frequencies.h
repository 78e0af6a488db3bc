/// Inverse frequencies and tables of rotary position embeddings, in fp64, as Hugging Face
/// transformers 5 computes them (modeling_rope_utils.py) with its fp32 casts replaced by fp64.
///
/// Source: linear: Chen et al. 2023 (arXiv:2306.15595); Llama 3: Meta's llama3 rope scaling; YaRN:
/// Peng et al. 2023 (arXiv:2309.00071); LongRoPE: Ding et al. 2024 (arXiv:2402.13753); dynamic: the
/// base grows with the sequence, as in transformers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace pentatron::kernels {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kDynamic, kLongRope };

struct RopeOptions {
  /// Head size times the rotary percentage. An odd one turns the next even number of dimensions,
  /// with frequencies theta^(-2i / rotary_dim), as in transformers.
  int64_t rotary_dim = 0;
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;                  ///< new context length / original one
  int64_t original_max_position = 8192; ///< the context length before scaling
  double low_freq_factor = 1.0;         ///< Llama 3
  double high_freq_factor = 4.0;        ///< Llama 3
  double beta_fast =
      32.0; ///< YaRN: pairs that turn more often than this in the original context stay
  double beta_slow = 1.0; ///< YaRN: pairs that turn less often are interpolated fully
  bool truncate = true;   ///< YaRN: round the bounds of the ramp to whole pairs
  std::optional<double> attention_factor =
      {}; ///< YaRN, LongRoPE: given, instead of computed from factor and the mscales
  std::optional<double> mscale = {};         ///< YaRN (DeepSeek)
  std::optional<double> mscale_all_dim = {}; ///< YaRN (DeepSeek)
  /// LongRoPE: what frequencies are divided by, in sequences up to original_max_position tokens and
  /// in longer ones. [turned_dims / 2]
  std::vector<double> short_factor = {}, long_factor = {};
  int64_t sequence = 0; ///< dynamic, LongRoPE: the longest sequence, in tokens
};

/// Dimensions that are turned: rotary_dim, rounded up to an even number.
int64_t turned_dims(const RopeOptions& options);

/// [turned_dims / 2]. Throws ConfigError if an option is out of range.
std::vector<double> rope_frequencies(const RopeOptions& options);

/// What cos and sin are multiplied by: 1 except for YaRN and LongRoPE.
double rope_attention_factor(const RopeOptions& options);

/// 0.1 mscale log(factor) + 1.
double yarn_mscale(double factor, double mscale);

struct RopeTables {
  std::vector<double> cos; ///< [max_position, turned_dims / 2], attention factor included
  std::vector<double> sin;
};
/// For sequences of up to `max_position` tokens.
RopeTables rope_tables(RopeOptions options, int64_t max_position);

} // namespace pentatron::kernels
