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

namespace {

/// Bytes of all of them and of their optimizer can be counted in 64 bits.
constexpr double kMaxParameters = 1e15;

/// As a Number that may be a double, where int64_t would overflow.
template <class Number> Number count_parameters(const GptConfig& c) {
  const auto number = [](int64_t size) { return static_cast<Number>(size); };
  const Number h = number(c.hidden_size), n = number(c.num_attention_heads),
               g = number(c.query_groups()), d = number(c.head_size()), f = number(c.ffn_size()),
               vocab = number(c.vocab_size);
  const Number norm = c.normalization == Normalization::kLayerNorm ? 2 * h : h;
  const Number qkv = (n + 2 * g) * d, up = c.gated() ? 2 * f : f;
  Number layer = h * qkv + n * d * h + h * (up + f) + 2 * norm;
  if (c.add_qkv_bias) layer += qkv;
  if (c.add_attention_proj_bias) layer += h;
  if (c.add_mlp_bias) layer += up + h;
  if (c.qk_layernorm) layer += 2 * d;
  if (c.softmax_type == SoftmaxType::kLearnable) layer += n;
  Number total = number(c.num_layers) * layer + norm + vocab * h;
  if (c.untie_embeddings_and_output_weights) total += vocab * h;
  if (c.position_embedding_type == PositionEmbedding::kLearnedAbsolute)
    total += number(c.max_position_embeddings) * h;
  return total;
}

} // namespace

int64_t GptConfig::num_parameters() const {
  return count_parameters<int64_t>(*this);
}

void GptConfig::validate(config::Violations& violations, std::string_view path) const {
  const auto key = [&](std::string_view name) { return config::join(path, name); };
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
  if (const double parameters = count_parameters<double>(*this); parameters > kMaxParameters) {
    violations.add(key("hidden_size"),
                   fmt::format("{}={} and the other sizes make a model of {:.3g} parameters, more "
                               "than {:.0e}",
                               key("hidden_size"), hidden_size, parameters, kMaxParameters),
                   "smaller sizes");
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
