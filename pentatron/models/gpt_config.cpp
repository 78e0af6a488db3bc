#include "pentatron/models/gpt_config.h"

#include <cmath>

#include <fmt/format.h>

namespace pentatron::models {

bool GptConfig::gated() const {
  using A = ActivationFunction;
  return activation_func == A::kSwiGlu || activation_func == A::kGeGlu ||
         activation_func == A::kGeGluTanh;
}

int64_t GptConfig::ffn_size() const {
  if (ffn_hidden_size) return *ffn_hidden_size;
  return gated() ? (hidden_size * 8 / 3 + 63) / 64 * 64 : 4 * hidden_size;
}

int64_t GptConfig::num_parameters() const {
  const int64_t h = hidden_size, n = num_attention_heads, g = query_groups(), d = head_size(),
                f = ffn_size();
  const int64_t norm = normalization == Normalization::kLayerNorm ? 2 * h : h;
  const int64_t qkv = (n + 2 * g) * d, up = gated() ? 2 * f : f;
  int64_t layer = h * qkv + n * d * h + h * (up + f) + 2 * norm;
  if (add_qkv_bias) layer += qkv;
  if (add_attention_proj_bias) layer += h;
  if (add_mlp_bias) layer += up + h;
  if (qk_layernorm) layer += 2 * d;
  if (softmax_type == SoftmaxType::kLearnable) layer += n;
  int64_t total = num_layers * layer + norm + vocab_size * h;
  if (untie_embeddings_and_output_weights) total += vocab_size * h;
  if (position_embedding_type == PositionEmbedding::kLearnedAbsolute)
    total += max_position_embeddings * h;
  return total;
}

void GptConfig::validate(config::Violations& violations, std::string_view path) const {
  const auto key = [&](std::string_view name) { return config::join(path, name); };
  if (hidden_size <= 0 || num_attention_heads <= 0 || query_groups() <= 0 ||
      kv_channels.value_or(1) <= 0)
    return; // the fields' own rules tell
  if (num_attention_heads % query_groups() != 0) {
    const int64_t works = config::nearest_divisor(num_attention_heads, query_groups());
    violations.add(key("num_query_groups"),
                   fmt::format("{}={} does not divide {}={}", key("num_query_groups"),
                               query_groups(), key("num_attention_heads"), num_attention_heads),
                   fmt::format("{}={}", key("num_query_groups"), works));
  }
  if (!kv_channels && hidden_size % num_attention_heads != 0) {
    const int64_t works = config::nearest_divisor(hidden_size, num_attention_heads);
    violations.add(
        key("num_attention_heads"),
        fmt::format("{}={} does not divide {}={}", key("num_attention_heads"), num_attention_heads,
                    key("hidden_size"), hidden_size),
        fmt::format("{}={}, or give {}", key("num_attention_heads"), works, key("kv_channels")));
  }
  if (position_embedding_type == PositionEmbedding::kRope) {
    const auto rotary = static_cast<int64_t>(static_cast<double>(head_size()) * rotary_percent);
    if (rotary % 2 != 0 || rotary == 0) {
      violations.add(
          key("rotary_percent"),
          fmt::format(
              "{}={} of a head of {} gives {} rotated features, which must be even and positive",
              key("rotary_percent"), rotary_percent, head_size(), rotary),
          fmt::format("{}={}", key("rotary_percent"),
                      static_cast<double>(std::max<int64_t>(2, rotary / 2 * 2)) /
                          static_cast<double>(head_size())));
    }
  }
  if (!full_attention_layers.empty() && !window_size) {
    violations.add(key("full_attention_layers"),
                   fmt::format("{} has no effect without {}", key("full_attention_layers"),
                               key("window_size")),
                   fmt::format("{}=4096", key("window_size")));
  }
  for (const int64_t layer : full_attention_layers) {
    if (layer >= num_layers) {
      violations.add(key("full_attention_layers"),
                     fmt::format("{} names layer {} of {}={}", key("full_attention_layers"), layer,
                                 key("num_layers"), num_layers),
                     fmt::format("numbers below {}", num_layers));
    }
  }
}

} // namespace pentatron::models
