#include "pentatron/trainer/precision.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "pentatron/models/model.h"
#include "pentatron/models/param_specs.h"

namespace pentatron::trainer {

namespace {

nn::LowPrecision low_precision(const MixedPrecisionConfig& c) {
  using kernels::QuantRecipe;
  switch (c.fp8_recipe) {
  case Fp8Recipe::kBlockwise:
    return {QuantRecipe::kBlockwise1x128, QuantRecipe::kBlockwise128x128,
            QuantRecipe::kBlockwise1x128};
  case Fp8Recipe::kMxfp8:
    return {QuantRecipe::kMxfp8, QuantRecipe::kMxfp8, QuantRecipe::kMxfp8};
  case Fp8Recipe::kTensorwise:
    break;
  }
  return {QuantRecipe::kTensorwiseE4m3, QuantRecipe::kTensorwiseE4m3,
          c.fp8 == Fp8Format::kHybrid ? QuantRecipe::kTensorwiseE5m2
                                      : QuantRecipe::kTensorwiseE4m3};
}

/// By segment: whether its products are in low precision.
std::vector<bool> quantised_segments(const Config& config) {
  const MixedPrecisionConfig& c = config.mixed_precision;
  const std::vector<models::SegmentSpec> segments = models::model_spec(config.model).segments;
  const auto layers = std::ranges::count_if(segments, &models::SegmentSpec::is_layer);
  std::vector<bool> result;
  int64_t layer = 0;
  for (const models::SegmentSpec& segment : segments) {
    const bool kept =
        c.first_last_layers_bf16 && segment.is_layer &&
        (layer < c.num_layers_at_start_in_bf16 || layer >= layers - c.num_layers_at_end_in_bf16);
    layer += segment.is_layer;
    result.push_back(!kept);
  }
  return result;
}

} // namespace

void MixedPrecisionConfig::validate(config::Violations& violations, std::string_view path) const {
  const std::string prefix = std::string(path) + ".";
  if (fp8 == Fp8Format::kHybrid && fp8_recipe != Fp8Recipe::kTensorwise)
    violations.add(
        prefix + "fp8",
        fmt::format("{}fp8=hybrid needs {}fp8_recipe=tensorwise: {} has all operands in e4m3",
                    prefix, prefix, config::to_string(fp8_recipe)),
        prefix + "fp8=e4m3");
  if (initial_loss_scale < min_loss_scale)
    violations.add(prefix + "initial_loss_scale",
                   fmt::format("{}initial_loss_scale={:g} is less than {}min_loss_scale={:g}",
                               prefix, initial_loss_scale, prefix, min_loss_scale),
                   fmt::format("{}initial_loss_scale={:g}", prefix, min_loss_scale));
}

void apply_recipe(PrecisionRecipe recipe, Config& config) {
  MixedPrecisionConfig& c = config.mixed_precision;
  c.recipe = recipe;
  if (recipe == PrecisionRecipe::kNone) return;
  config.dtype = Precision::kBf16;
  c.fp8 = Fp8Format::kE4m3;
  switch (recipe) {
  case PrecisionRecipe::kBf16Fp8Tensorwise:
    c.fp8 = Fp8Format::kHybrid;
    c.fp8_recipe = Fp8Recipe::kTensorwise;
    c.first_last_layers_bf16 = true;
    return;
  case PrecisionRecipe::kBf16Fp8Blockwise:
    c.fp8_recipe = Fp8Recipe::kBlockwise;
    return;
  case PrecisionRecipe::kBf16Mxfp8:
    c.fp8_recipe = Fp8Recipe::kMxfp8;
    return;
  case PrecisionRecipe::kFp16:
    config.dtype = Precision::kFp16;
    c.fp8 = Fp8Format::kNone;
    return;
  case PrecisionRecipe::kBf16:
  case PrecisionRecipe::kNone:
    c.fp8 = Fp8Format::kNone;
  }
}

void check_precision(const Config& config, config::Violations& violations) {
  const MixedPrecisionConfig& c = config.mixed_precision;
  if (c.fp8 == Fp8Format::kNone) return;
  if (config.device == DeviceKind::kCuda)
    violations.add("mixed_precision.fp8",
                   fmt::format("mixed_precision.fp8={} is not built for device=cuda",
                               config::to_string(c.fp8)),
                   "device=cpu");
  if (config.model.num_moe_experts)
    violations.add("mixed_precision.fp8",
                   fmt::format("mixed_precision.fp8={} is not built for layers with experts "
                               "(model.num_moe_experts={})",
                               config::to_string(c.fp8), *config.model.num_moe_experts),
                   "mixed_precision.fp8=none");
}

void plan_precision(nn::ParamList& params, const Config& config) {
  if (config.mixed_precision.fp8 == Fp8Format::kNone) return;
  const std::vector<bool> quantised = quantised_segments(config);
  for (nn::Param& param : params)
    if (param.linear && quantised[static_cast<size_t>(param.units().front())])
      param.low_precision = low_precision(config.mixed_precision);
}

std::string precision_of_one_layout(const Config& config) {
  const MixedPrecisionConfig& c = config.mixed_precision;
  if (c.fp8 == Fp8Format::kNone) return {};
  const std::string key =
      fmt::format("mixed_precision.fp8_recipe={}", config::to_string(c.fp8_recipe));
  if (c.fp8_recipe == Fp8Recipe::kTensorwise) return key;
  const int64_t block = kernels::traits(low_precision(c).x).block_cols;
  const int64_t tp = config.parallel.tensor_model_parallel_size;
  const int64_t cp = config.parallel.context_parallel_size;
  const int64_t chunks = cp > 1 ? 2 * cp : 1;
  bool whole = config.train.seq_length % (block * chunks) == 0;
  for (const auto& [name, spec] : models::param_specs(config.model)) {
    const auto placement = spec.placements.find("tp");
    if (name.find("layers.") == std::string::npos || spec.shape.size() != 2 ||
        placement == spec.placements.end() || placement->second.kind != nn::Placement::Kind::kShard)
      continue;
    const int64_t size = spec.shape[static_cast<size_t>(placement->second.dim)];
    whole = whole && size % (block * tp) == 0;
    for (const nn::FusedPart& part : spec.parts)
      whole = whole && part.pieces * part.piece_size % (block * tp) == 0;
  }
  return whole ? ""
               : fmt::format("{} with blocks of {} that tokens, heads or ranks divide", key, block);
}

} // namespace pentatron::trainer
