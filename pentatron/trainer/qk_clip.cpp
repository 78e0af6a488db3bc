#include "pentatron/trainer/qk_clip.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/models/param_specs.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/trainer/families.h"

namespace pentatron::trainer {

namespace {

/// Projections that make queries or keys, below an attention module: of self-attention, of
/// attention to an encoder, of latents.
constexpr const char* kProjections[] = {"qkv", "q", "kv", "q_b", "kv_b"};

struct Place {
  std::string module, projection; ///< "layers.0.attention", "qkv"
};

/// Of the weight or bias of such a projection; empty: of none.
Place place_of(const std::string& param) {
  const size_t kind = param.rfind('.');
  if (kind == std::string::npos) return {};
  const std::string what = param.substr(kind + 1), linear = param.substr(0, kind);
  const size_t last = linear.rfind('.');
  if ((what != "weight" && what != "bias") || last == std::string::npos) return {};
  const std::string projection = linear.substr(last + 1);
  if (std::ranges::find(kProjections, projection) == std::end(kProjections)) return {};
  return {linear.substr(0, last), projection};
}

bool makes_keys(const std::string& projection) {
  return projection == "qkv" || projection.starts_with("kv");
}

} // namespace

void check_qk_clip(const Config& config, config::Violations& violations) {
  if (!config.optimizer.qk_clip) return;
  constexpr const char* kKey = "optimizer.qk_clip";
  const auto add = [&](const std::string& why) {
    violations.add(kKey, fmt::format("{}=true {}", kKey, why), fmt::format("{}=false", kKey));
  };
  if (config.model.qk_layernorm)
    add("has no effect on queries and keys that model.qk_layernorm=true normalizes");
  if (config.peft.on())
    return add(
        fmt::format("scales down query and key projections, but peft.type={} does not train them",
                    config::to_string(config.peft.type)));
  if (config.train.freeze.empty()) return;
  for (const auto& [name, spec] : models::param_specs(config.model))
    if (!place_of(name).module.empty() && !is_frozen(config.train.freeze, name)) return;
  add("scales down query and key projections, but train.freeze freezes all of them");
}

QkClipOptions qk_clip_options(const Config& config) {
  return {.measure = config.logger.log_max_attention_logit,
          .clip = config.optimizer.qk_clip,
          .threshold = config.optimizer.qk_clip_threshold,
          .alpha = config.optimizer.qk_clip_alpha};
}

std::vector<QkClip::Features> QkClip::features_of(const std::string& projection,
                                                  const nn::FusedPart& part,
                                                  const models::ModelConfig& model) const {
  if (part.name == "q") return {{0, part.piece_size, Factor::kQuery}};
  if (part.name == "k") return {{0, part.piece_size, Factor::kKey}};
  if (part.name != "heads") return {};
  const int64_t plain = model.qk_head_dim;
  if (makes_keys(projection)) return {{0, plain, Factor::kKey}};
  return {{0, plain, Factor::kQuery}, {plain, part.piece_size, Factor::kWhole}};
}

QkClip::Projection QkClip::projection_of(nn::Param& param, int64_t module, const std::string& name,
                                         const models::ModelConfig& model) const {
  Projection result{&param, module, {}};
  for (const nn::LocalBox& box : nn::local_boxes(param.spec(), param.where())) {
    int64_t first = 0; // global row of the part
    for (const nn::FusedPart& part : param.spec().parts) {
      for (const Features& features : features_of(name, part, model))
        for (int64_t head = 0; head < part.pieces; ++head) {
          const int64_t row = first + head * part.piece_size;
          const int64_t begin = std::max(box.global[0], row + features.begin),
                        end = std::min(box.global[0] + box.size[0], row + features.end);
          if (begin >= end) continue;
          result.rows.push_back({.begin = box.local[0] + begin - box.global[0],
                                 .size = end - begin,
                                 .key_head = head * key_heads_ / part.pieces,
                                 .factor = features.factor});
        }
      first += part.pieces * part.piece_size;
    }
  }
  return result;
}

QkClip::QkClip(const QkClipOptions& options, const models::ModelConfig& model,
               nn::ParamList& params)
    : options_(options), heads_(model.num_attention_heads),
      key_heads_(model.multi_latent_attention ? heads_ : model.query_groups()) {
  if (!on()) return;
  for (const auto& [name, spec] : models::param_specs(model)) {
    const Place place = place_of(name);
    if (makes_keys(place.projection) && name.ends_with(".weight")) modules_.push_back(place.module);
  }
  for (nn::Param& param : params) {
    const Place place = place_of(param.name());
    const auto module = std::ranges::find(modules_, place.module);
    if (options_.clip && param.trainable && module != modules_.end())
      projections_.push_back(
          projection_of(param, module - modules_.begin(), place.projection, model));
  }
}

QkClip::Result QkClip::result(const nn::StepState& state, const comm::ParallelGroups& groups,
                              at::Device device) const {
  Result result;
  const double none = -std::numeric_limits<double>::infinity();
  const at::Tensor most_here =
      at::full({std::ssize(modules_), heads_}, none, at::dtype(at::kDouble).device(device));
  for (size_t i = 0; i < modules_.size(); ++i) {
    const auto found = state.max_logits.find(modules_[i]); // of this rank's stages
    if (found == state.max_logits.end()) continue;
    const int64_t own = found->second.numel();
    most_here[static_cast<int64_t>(i)]
        .narrow(0, groups.tp().rank() * own, own)
        .copy_(found->second);
  }
  comm::all_reduce_(most_here, comm::ReduceOp::kMax,
                    planted("attention_logits_of_the_tensor_ranks_alone") ? groups.tp()
                                                                          : groups.world());
  const at::Tensor all = nn::host_values(most_here);
  result.max_logit = all.numel() > 0 ? *all.max().const_data_ptr<double>() : 0;
  if (!options_.clip) return result;
  // Heads that share a key head share its largest logit.
  const int64_t group = heads_ / key_heads_;
  const at::Tensor shared = all.view({std::ssize(modules_), key_heads_, group}).amax({2});
  const double* const most = shared.const_data_ptr<double>();
  result.clipped_heads = group * std::count_if(most, most + shared.numel(), [&](double logit) {
                           return logit > options_.threshold;
                         });
  if (result.clipped_heads == 0) return result;
  for (const Projection& projection : projections_) {
    const int64_t row_size = projection.param->numel() / projection.param->shape()[0];
    for (const Rows& rows : projection.rows) {
      const double logit = most[projection.module * key_heads_ + rows.key_head];
      if (!(logit > options_.threshold)) continue;
      const double power = rows.factor == Factor::kQuery ? options_.alpha
                           : rows.factor == Factor::kKey ? 1 - options_.alpha
                                                         : 1;
      result.scaled[projection.param].push_back({{rows.begin * row_size, rows.size * row_size},
                                                 std::pow(options_.threshold / logit, power)});
    }
  }
  return result;
}

} // namespace pentatron::trainer
