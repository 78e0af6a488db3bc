#include "pentatron/models/model_config.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/kernels/rope/rope_frequencies.h"
#include "pentatron/models/layer_pattern.h"
#include "pentatron/models/param_specs.h"

namespace pentatron::models {

bool ModelConfig::gated() const {
  using A = ActivationFunction;
  return activation_func == A::kSwiGlu || activation_func == A::kGeGlu ||
         activation_func == A::kGeGluTanh || activation_func == A::kQuickGeGlu ||
         activation_func == A::kReGlu;
}

int64_t ModelConfig::ffn_size() const {
  if (ffn_hidden_size) return *ffn_hidden_size;
  return gated() ? (hidden_size * 8 / 3 + 63) / 64 * 64 : 4 * hidden_size;
}

int64_t ModelConfig::rotary_dim() const {
  if (multi_latent_attention) return qk_pos_emb_head_dim;
  return static_cast<int64_t>(static_cast<double>(head_size()) * rotary_percent);
}

double ModelConfig::score_scale() const {
  if (softmax_scale) return *softmax_scale;
  const double plain = 1.0 / std::sqrt(static_cast<double>(head_size()));
  if (!multi_latent_attention || rope_scaling.type != RopeScalingType::kYarn ||
      rope_scaling.mscale_all_dim.value_or(0) == 0)
    return plain;
  const double mscale = kernels::yarn_mscale(rope_scaling.factor, *rope_scaling.mscale_all_dim);
  return plain * mscale * mscale;
}

bool ModelConfig::balanced_by(LoadBalancing type) const {
  return std::ranges::find(moe_router_load_balancing_type, type) !=
         moe_router_load_balancing_type.end();
}

std::vector<std::pair<LoadBalancing, double>> ModelConfig::balance_losses() const {
  std::vector<std::pair<LoadBalancing, double>> losses;
  for (size_t i = 0; i < moe_router_load_balancing_type.size(); ++i)
    if (const LoadBalancing type = moe_router_load_balancing_type[i];
        type != LoadBalancing::kSinkhorn && type != LoadBalancing::kNone &&
        i < moe_aux_loss_coeff.size() && moe_aux_loss_coeff[i] > 0)
      losses.emplace_back(type, moe_aux_loss_coeff[i]);
  return losses;
}

bool ModelConfig::is_moe_layer(int64_t index) const {
  return num_moe_experts && is_in_layer_pattern(moe_layer_freq, num_layers, index);
}

std::optional<int64_t> ModelConfig::longest_sequence() const {
  if (type == ModelType::kT5) return std::nullopt;
  if (scales_dynamically()) { // within what tables can count
    constexpr double kMost = 1LL << 40;
    const double most = static_cast<double>(max_position_embeddings) * rope_scaling.factor;
    return std::max(max_position_embeddings, static_cast<int64_t>(std::min(most, kMost)));
  }
  return max_position_embeddings - position_offset;
}

std::vector<std::string> ModelConfig::class_names() const {
  std::vector<std::string> names = label_names;
  for (int64_t i = std::ssize(names); i < num_labels; ++i)
    names.push_back(fmt::format("LABEL_{}", i));
  return names;
}

bool ModelConfig::pools() const {
  switch (head) {
  case ModelHead::kMaskedLm:
    return binary_head;
  case ModelHead::kNone:
    return pooler;
  default:
    return true;
  }
}

ModelConfig ModelConfig::default_of(ModelType type) {
  ModelConfig c;
  c.type = type;
  if (type == ModelType::kGpt) return c;
  if (type == ModelType::kT5) {
    c.position_embedding_type = PositionEmbedding::kNone;
    c.layernorm_epsilon = 1e-6;
    c.activation_func = ActivationFunction::kGeGluTanh;
    c.softmax_scale = 1;
    c.embedding_init_method_std = 1; // of embeddings that scale_decoder_outputs scales down
    return c;
  }
  c.position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  c.normalization = Normalization::kLayerNorm;
  c.norm_placement = NormPlacement::kPost;
  c.layernorm_epsilon = 1e-12;
  c.activation_func = ActivationFunction::kGelu;
  c.add_qkv_bias = c.add_attention_proj_bias = c.add_mlp_bias = true;
  return c;
}

ModelConfig ModelConfig::without_mtp() const {
  ModelConfig plain = *this;
  plain.mtp_num_layers = 0;
  plain.mtp_loss_scaling_factor = ModelConfig().mtp_loss_scaling_factor;
  return plain;
}

ModelConfig ModelConfig::with_loss() const {
  ModelConfig trainable = *this;
  if (head == ModelHead::kNone) trainable.head = ModelConfig().head;
  return trainable;
}

ModelConfig ModelConfig::with_one_layer() const {
  ModelConfig small = *this;
  small.num_layers = 1;
  if (type == ModelType::kT5) small.num_decoder_layers = 1;
  small.full_attention_layers = {};
  small.moe_layer_freq = "1";
  small.mtp_num_layers = std::clamp<int64_t>(mtp_num_layers, 0, kMostMtpLayers); // in no range yet
  if (!num_moe_experts) return small;
  int64_t experts = 0;
  try {
    const int64_t looked_at = std::clamp<int64_t>(num_layers, 1, kLongestLayerList);
    const auto pattern = parse_layer_pattern(moe_layer_freq, looked_at);
    experts = std::ranges::count(pattern, true);
    if (experts == std::ssize(pattern)) return small;
  } catch (const ConfigError&) { // validate() tells it
    return small;
  }
  small.num_layers = experts == 0 ? 1 : 2;
  small.moe_layer_freq = experts == 0 ? "[0]" : is_moe_layer(num_layers - 1) ? "[0,1]" : "[1,0]";
  return small;
}

namespace {

/// Bytes of all of them and of their optimizer can be counted in 64 bits.
constexpr double kMaxParameters = 1e15;

/// Enough for any head; sizes may be too large for a list.
constexpr int64_t kMostDivisors = 1 << 12;

/// In fp64, where int64_t would overflow: from models of one and of two layers, because all layers
/// have the same parameters and there may be a million of them.
double approximate_parameters(ModelConfig config) {
  const int64_t decoder = config.type == ModelType::kT5 ? config.decoder_layers() : 0;
  const auto layers = static_cast<double>(config.num_layers);
  const auto count = [&config](int64_t layers_now, int64_t decoder_layers) {
    config.num_layers = layers_now;
    if (config.type == ModelType::kT5) config.num_decoder_layers = decoder_layers;
    config.full_attention_layers = {};
    config.moe_layer_freq = "1";
    double total = 0;
    for (const auto& [name, spec] : param_specs(config))
      total += std::accumulate(spec.shape.begin(), spec.shape.end(), 1.0, std::multiplies<>());
    return total;
  };
  const double one = count(1, 1);
  double total = one + (layers - 1) * (count(2, 1) - one);
  if (decoder > 0) total += static_cast<double>(decoder - 1) * (count(1, 2) - one);
  return total;
}

/// LongRoPE has a divisor for each pair of dimensions that rotates, and dynamic scaling changes the
/// frequencies of all pairs but the first.
void check_scaling(const RopeScalingConfig& scaling, const std::string& path, int64_t rotary_dim,
                   config::Violations& violations) {
  const int64_t pairs = (rotary_dim + 1) / 2;
  if (scaling.type == RopeScalingType::kDynamic && pairs == 1)
    violations.add(config::join(path, "type"),
                   fmt::format("{}=dynamic needs more than one pair of dimensions that rotate",
                               config::join(path, "type")),
                   fmt::format("{}=none", config::join(path, "type")));
  if (scaling.type != RopeScalingType::kLongRope) return;
  const std::vector<int64_t> ones(static_cast<size_t>(std::clamp<int64_t>(pairs, 0, kMostDivisors)),
                                  1);
  for (const auto& [name, divisors] :
       {std::pair{"short_factor", &scaling.short_factor}, {"long_factor", &scaling.long_factor}})
    if (std::ssize(*divisors) != pairs)
      violations.add(config::join(path, name),
                     fmt::format("{} has {} numbers, but {} pairs of dimensions rotate",
                                 config::join(path, name), divisors->size(), pairs),
                     fmt::format("{}=[{}]", config::join(path, name), fmt::join(ones, ",")));
}

} // namespace

int64_t ModelConfig::num_parameters() const {
  int64_t total = 0;
  for (const auto& [name, spec] : param_specs(*this)) total += spec.numel();
  return total;
}

void ModelConfig::validate(config::Violations& violations, std::string_view path) const {
  const size_t before = violations.list().size();
  const auto key = [&](std::string_view name) { return config::join(path, name); };
  if (num_attention_heads % query_groups() != 0) {
    const int64_t works = config::nearest_divisor(num_attention_heads, query_groups());
    violations.add(key("num_query_groups"),
                   fmt::format("{}={} does not divide {}={}", key("num_query_groups"),
                               query_groups(), key("num_attention_heads"), num_attention_heads),
                   fmt::format("{}={}", key("num_query_groups"), works));
  }
  if (!multi_latent_attention && !kv_channels && hidden_size % num_attention_heads != 0) {
    const int64_t works = config::nearest_divisor(hidden_size, num_attention_heads);
    violations.add(key("num_attention_heads"),
                   fmt::format("{}={} does not divide {}={}", key("num_attention_heads"),
                               num_attention_heads, key("hidden_size"), hidden_size),
                   fmt::format("{}={} or {}={}", key("num_attention_heads"), works,
                               key("kv_channels"),
                               std::max<int64_t>(2, hidden_size / num_attention_heads / 2 * 2)));
  }
  // A saved T5 does not have the key.
  if (type != ModelType::kT5 && position_embedding_type == PositionEmbedding::kRope &&
      !multi_latent_attention) {
    const int64_t rotary = rotary_dim();
    const int64_t turned = (rotary + 1) / 2 * 2; // as in transformers
    if (turned > head_size() || rotary == 0) {
      violations.add(
          key("rotary_percent"),
          fmt::format("{}={} with a head size of {} rotates {} dimensions; this number must be "
                      "positive and, rounded up to an even number, at most the head size",
                      key("rotary_percent"), rotary_percent, head_size(), rotary),
          head_size() < 2 ? fmt::format("{}=2", key("kv_channels"))
                          : fmt::format("{}={}", key("rotary_percent"),
                                        static_cast<double>(std::max<int64_t>(2, rotary / 2 * 2)) /
                                            static_cast<double>(head_size())));
    }
  }
  validate_latents(violations, path);
  for (const auto& [name, given] :
       {std::pair{"activation_func_clamp_value", activation_func_clamp_value.has_value()},
        std::pair{"glu_linear_offset", glu_linear_offset != 0}})
    if (given && !gated())
      violations.add(key(name),
                     fmt::format("{} has no effect with {}={}, which is not gated", key(name),
                                 key("activation_func"), config::to_string(activation_func)),
                     fmt::format("{}=swiglu", key("activation_func")));
  validate_experts(violations, path);
  if (mtp_num_layers == 0 && mtp_loss_scaling_factor != ModelConfig().mtp_loss_scaling_factor)
    violations.add(key("mtp_loss_scaling_factor"),
                   fmt::format("{}={} has no effect with {}=0", key("mtp_loss_scaling_factor"),
                               mtp_loss_scaling_factor, key("mtp_num_layers")),
                   fmt::format("{}=1", key("mtp_num_layers")));
  if (padding_token >= vocab_size) {
    violations.add(key("padding_token"),
                   fmt::format("{}={} is not below {}={}", key("padding_token"), padding_token,
                               key("vocab_size"), vocab_size),
                   fmt::format("{}=-1", key("padding_token")));
  }
  if (head == ModelHead::kClassification && !label_names.empty()) {
    const std::string setting =
        fmt::format("{}=[{}]", key("label_names"), fmt::join(label_names, ","));
    if (std::ssize(label_names) > num_labels)
      violations.add(key("label_names"),
                     fmt::format("{} has {} names, but {}={}", setting, label_names.size(),
                                 key("num_labels"), num_labels),
                     fmt::format("{}={}", key("num_labels"), label_names.size()));
    else if (const auto all = class_names();
             std::set<std::string>(all.begin(), all.end()).size() != all.size())
      violations.add(key("label_names"),
                     fmt::format("{} gives the same name to two classes", setting),
                     fmt::format("{}=[]", key("label_names")));
  }
  if (type == ModelType::kT5 && decoder_start_token >= vocab_size) {
    violations.add(key("decoder_start_token"),
                   fmt::format("{}={} is not below {}={}", key("decoder_start_token"),
                               decoder_start_token, key("vocab_size"), vocab_size),
                   fmt::format("{}=0", key("decoder_start_token")));
  }
  if (type == ModelType::kT5 && decoder_pad_token.value_or(0) >= vocab_size) {
    violations.add(key("decoder_pad_token"),
                   fmt::format("{}={} is not below {}={}", key("decoder_pad_token"),
                               *decoder_pad_token, key("vocab_size"), vocab_size),
                   fmt::format("{}=0", key("decoder_pad_token")));
  }
  if (const bool learned = position_embedding_type == PositionEmbedding::kLearnedAbsolute;
      type == ModelType::kBert && position_offset > 0 &&
      (!learned || position_offset >= max_position_embeddings)) {
    violations.add(
        key("position_offset"),
        learned
            ? fmt::format("{}={} leaves no positions of {}={}", key("position_offset"),
                          position_offset, key("max_position_embeddings"), max_position_embeddings)
            : fmt::format("{}={} has no effect without {}=learned_absolute", key("position_offset"),
                          position_offset, key("position_embedding_type")),
        fmt::format("{}=0", key("position_offset")));
  }
  if (qk_layernorm_scope != QkNormScope::kHead && !qk_layernorm) {
    violations.add(key("qk_layernorm_scope"),
                   fmt::format("{}={} has no effect without {}=true", key("qk_layernorm_scope"),
                               config::to_string(qk_layernorm_scope), key("qk_layernorm")),
                   multi_latent_attention ? fmt::format("{}=head", key("qk_layernorm_scope"))
                                          : fmt::format("{}=true", key("qk_layernorm")));
  }
  // The causal side counts half of the buckets one by one, and divides the rest by logarithm.
  if (const int64_t one_by_one = relative_attention_num_buckets / 2;
      type == ModelType::kT5 && relative_attention_max_distance <= one_by_one) {
    violations.add(
        key("relative_attention_max_distance"),
        fmt::format("{}={} is not more than half of {}={}", key("relative_attention_max_distance"),
                    relative_attention_max_distance, key("relative_attention_num_buckets"),
                    relative_attention_num_buckets),
        fmt::format("{}={}", key("relative_attention_max_distance"), 4 * one_by_one));
  }
  if (position_embedding_type == PositionEmbedding::kRope) {
    check_scaling(rope_scaling, key("rope_scaling"), rotary_dim(), violations);
    check_scaling(rope_local_scaling, key("rope_local_scaling"), rotary_dim(), violations);
  }
  if (rope_local_scaling.type != RopeScalingType::kNone && !rope_local_base_freq) {
    violations.add(key("rope_local_scaling.type"),
                   fmt::format("{}={} has no effect without {}", key("rope_local_scaling.type"),
                               config::to_string(rope_local_scaling.type),
                               key("rope_local_base_freq")),
                   fmt::format("{}={}", key("rope_local_base_freq"), rotary_base));
  }
  if (rope_local_base_freq && !window_size) {
    violations.add(
        key("rope_local_base_freq"),
        fmt::format("{} has no effect without {}", key("rope_local_base_freq"), key("window_size")),
        fmt::format("{}=4096", key("window_size")));
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
                     fmt::format("{} contains layer {}, but {}={}", key("full_attention_layers"),
                                 layer, key("num_layers"), num_layers),
                     fmt::format("{}=[{}]", key("full_attention_layers"), num_layers - 1));
    }
  }
  if (violations.list().size() > before) return; // no model can be made of it
  if (const double parameters = approximate_parameters(*this); parameters > kMaxParameters) {
    violations.add(key("hidden_size"),
                   fmt::format("{}={} and the other sizes give a model with {:.3g} parameters, "
                               "more than the limit of {:.0e}",
                               key("hidden_size"), hidden_size, parameters, kMaxParameters),
                   "");
  }
}

} // namespace pentatron::models
