#include "pentatron/trainer/precision.h"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/philox.h"
#include "pentatron/kernels/common/build.h"
#include "pentatron/models/model.h"
#include "pentatron/models/param_specs.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/ops/scaled_products.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

nn::LowPrecision low_precision(const MixedPrecisionConfig& c) {
  using kernels::QuantRecipe;
  if (c.fp4 != Fp4Format::kNone)
    return {.x = QuantRecipe::kNvfp4,
            .weight = QuantRecipe::kNvfp4Square,
            .dy = QuantRecipe::kNvfp4,
            .hadamard = true};
  switch (c.fp8_recipe) {
  case Fp8Recipe::kBlockwise:
    return {QuantRecipe::kBlockwise1x128, QuantRecipe::kBlockwise128x128,
            QuantRecipe::kBlockwise1x128};
  case Fp8Recipe::kMxfp8:
    return {QuantRecipe::kMxfp8, QuantRecipe::kMxfp8, QuantRecipe::kMxfp8};
  case Fp8Recipe::kTensorwise:
  case Fp8Recipe::kDelayed:
    break;
  }
  return {QuantRecipe::kTensorwiseE4m3, QuantRecipe::kTensorwiseE4m3,
          c.fp8 == Fp8Format::kHybrid ? QuantRecipe::kTensorwiseE5m2
                                      : QuantRecipe::kTensorwiseE4m3};
}

} // namespace

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

bool sends_codes(const Config& config) {
  return config.ddp.fp8_param_gather && config.mixed_precision.low_precision() &&
         nn::Fp8Weight::supports(low_precision(config.mixed_precision).weight);
}

void MixedPrecisionConfig::validate(config::Violations& violations, std::string_view path) const {
  const std::string prefix = std::string(path) + ".";
  if (fp8 == Fp8Format::kHybrid && fp8_recipe != Fp8Recipe::kTensorwise &&
      fp8_recipe != Fp8Recipe::kDelayed)
    violations.add(
        prefix + "fp8",
        fmt::format("{}fp8=hybrid needs {}fp8_recipe=tensorwise or delayed: {} has all operands "
                    "in e4m3",
                    prefix, prefix, config::to_string(fp8_recipe)),
        prefix + "fp8=e4m3");
  if (fp8 != Fp8Format::kNone && fp4 != Fp4Format::kNone)
    violations.add(prefix + "fp4",
                   fmt::format("{}fp4={} and {}fp8={} cannot be used together: both set the "
                               "precision of the same matrix products",
                               prefix, config::to_string(fp4), prefix, config::to_string(fp8)),
                   prefix + "fp8=none");
  if (first_last_layers_bf16 && num_layers_at_start_in_bf16 == 0 && num_layers_at_end_in_bf16 == 0)
    violations.add(
        prefix + "first_last_layers_bf16",
        fmt::format("{0}first_last_layers_bf16=true has no effect with "
                    "{0}num_layers_at_start_in_bf16=0 and {0}num_layers_at_end_in_bf16=0",
                    prefix),
        prefix + "first_last_layers_bf16=false");
  if (initial_loss_scale < min_loss_scale && min_loss_scale <= kMostLossScale)
    violations.add(prefix + "initial_loss_scale",
                   fmt::format("{}initial_loss_scale={:g} is less than {}min_loss_scale={:g}",
                               prefix, initial_loss_scale, prefix, min_loss_scale),
                   fmt::format("{}initial_loss_scale={}", prefix, min_loss_scale));
}

namespace {

/// What a recipe says.
struct RecipeEntry {
  PrecisionRecipe recipe;
  Precision dtype = Precision::kBf16;
  Fp8Format fp8 = Fp8Format::kNone;
  Fp8Recipe fp8_recipe = Fp8Recipe::kTensorwise;
  bool first_last_layers_bf16 = false;
  Fp4Format fp4 = Fp4Format::kNone;
};

constexpr std::array kRecipeEntries = [] {
  using enum PrecisionRecipe;
  constexpr Precision kHalf = Precision::kFp16, kBrain = Precision::kBf16;
  constexpr Fp8Format kAll = Fp8Format::kE4m3, kMixed = Fp8Format::kHybrid;
  return std::array{RecipeEntry{PrecisionRecipe::kBf16, kBrain},
                    RecipeEntry{PrecisionRecipe::kFp16, kHalf},
                    RecipeEntry{kBf16Fp8Delayed, kBrain, kMixed, Fp8Recipe::kDelayed},
                    RecipeEntry{kBf16Fp8Tensorwise, kBrain, kMixed, Fp8Recipe::kTensorwise, true},
                    RecipeEntry{kBf16Fp8Blockwise, kBrain, kAll, Fp8Recipe::kBlockwise},
                    RecipeEntry{kBf16Mxfp8, kBrain, kAll, Fp8Recipe::kMxfp8},
                    RecipeEntry{kBf16Nvfp4, kBrain, Fp8Format::kNone, Fp8Recipe::kTensorwise, true,
                                Fp4Format::kE2m1},
                    RecipeEntry{kFp16Fp8Delayed, kHalf, kMixed, Fp8Recipe::kDelayed},
                    RecipeEntry{kFp16Fp8Tensorwise, kHalf, kMixed, Fp8Recipe::kTensorwise, true},
                    RecipeEntry{kFp16Fp8Blockwise, kHalf, kAll, Fp8Recipe::kBlockwise},
                    RecipeEntry{kFp16Mxfp8, kHalf, kAll, Fp8Recipe::kMxfp8}};
}();

} // namespace

void apply_recipe(PrecisionRecipe recipe, Config& config) {
  MixedPrecisionConfig& c = config.mixed_precision;
  c.recipe = recipe;
  for (const RecipeEntry& entry : kRecipeEntries) {
    if (entry.recipe != recipe) continue;
    config.dtype = entry.dtype;
    c.fp8 = entry.fp8;
    c.fp8_recipe = entry.fp8_recipe;
    c.fp4 = entry.fp4;
    c.first_last_layers_bf16 = entry.first_last_layers_bf16;
    config.ddp.grad_reduce_in_fp32 = entry.dtype != Precision::kFp16;
    if (entry.fp8_recipe != Fp8Recipe::kDelayed) continue;
    c.fp8_amax_history_len = 1024;
    c.fp8_amax_compute_algo = AmaxAlgorithm::kMax;
  }
}

namespace {

/// Whether the name of the recipe says the data types and scales of the run.
bool says(const RecipeEntry& entry, const Config& config) {
  const MixedPrecisionConfig& c = config.mixed_precision;
  const bool fp8 = c.fp8 != Fp8Format::kNone;
  return entry.dtype == config.dtype && entry.fp4 == c.fp4 &&
         (entry.fp8 != Fp8Format::kNone) == fp8 && (!fp8 || entry.fp8_recipe == c.fp8_recipe);
}

/// What the name of a recipe says, other keys cannot change.
void check_recipe(const Config& config, config::Violations& violations) {
  const MixedPrecisionConfig& c = config.mixed_precision;
  const auto* const own = std::ranges::find(kRecipeEntries, c.recipe, &RecipeEntry::recipe);
  if (own == kRecipeEntries.end() || says(*own, config)) return;
  const auto conflict = [&](const char* key, auto given, auto meant) {
    const auto* const other = std::ranges::find_if(
        kRecipeEntries, [&](const RecipeEntry& entry) { return says(entry, config); });
    std::string remedy = fmt::format("{}={}", key, config::to_string(meant));
    if (other != kRecipeEntries.end())
      remedy =
          fmt::format("mixed_precision.recipe={}, or {}", config::to_string(other->recipe), remedy);
    violations.add(key,
                   fmt::format("{}={} contradicts mixed_precision.recipe={}, which sets {}={}", key,
                               config::to_string(given), config::to_string(c.recipe), key,
                               config::to_string(meant)),
                   remedy);
  };
  if (config.dtype != own->dtype) return conflict("dtype", config.dtype, own->dtype);
  if (c.fp4 != own->fp4) return conflict("mixed_precision.fp4", c.fp4, own->fp4);
  if ((c.fp8 == Fp8Format::kNone) != (own->fp8 == Fp8Format::kNone))
    return conflict("mixed_precision.fp8", c.fp8, own->fp8);
  conflict("mixed_precision.fp8_recipe", c.fp8_recipe, own->fp8_recipe);
}

void check_param_gather(const Config& config, config::Violations& violations) {
  const MixedPrecisionConfig& c = config.mixed_precision;
  const std::string key = "ddp.fp8_param_gather";
  if (!config.ddp.fp8_param_gather) return;
  if (c.fp8 == Fp8Format::kNone)
    violations.add(key, fmt::format("{}=true needs products in FP8", key),
                   c.fp4 == Fp4Format::kNone ? "mixed_precision.fp8=e4m3"
                                             : fmt::format("{}=false", key));
  else if (!sends_codes(config))
    violations.add(
        key,
        fmt::format(
            "{}=true is not supported with mixed_precision.fp8_recipe={}, whose forward and "
            "backward products quantize a weight differently",
            key, config::to_string(c.fp8_recipe)),
        fmt::format("{}=false", key));
  if (config.ddp.zero_stage == 0)
    violations.add(
        key, fmt::format("{}=true has no effect with ddp.zero_stage=0, which gathers nothing", key),
        "ddp.zero_stage=1");
  if (config.peft.on())
    violations.add(key,
                   fmt::format("{}=true is not supported with peft.type={}", key,
                               config::to_string(config.peft.type)),
                   fmt::format("{}=false", key));
}

/// The key that makes products of low precision, with its value.
std::string low_precision_setting(const MixedPrecisionConfig& c) {
  return c.fp4 != Fp4Format::kNone
             ? fmt::format("mixed_precision.fp4={}", config::to_string(c.fp4))
             : fmt::format("mixed_precision.fp8={}", config::to_string(c.fp8));
}

/// The key that says in what recipe.
std::string precision_recipe(const MixedPrecisionConfig& c) {
  return c.fp4 != Fp4Format::kNone || c.fp8_recipe == Fp8Recipe::kTensorwise
             ? low_precision_setting(c)
             : fmt::format("mixed_precision.fp8_recipe={}", config::to_string(c.fp8_recipe));
}

/// What LibTorch's scaled products cannot do on any GPU.
void check_gpu_precision(const Config& config, config::Violations& violations) {
  const MixedPrecisionConfig& c = config.mixed_precision;
  if (config.dtype == Precision::kFp64)
    violations.add(
        "dtype",
        fmt::format("dtype=fp64 with {} is computed on CPUs only", low_precision_setting(c)),
        "dtype=fp32");
  if (config.ddp.fp8_param_gather)
    violations.add("ddp.fp8_param_gather",
                   "ddp.fp8_param_gather=true works on CPUs only: ranks with GPUs gather weights "
                   "in dtype",
                   "ddp.fp8_param_gather=false");
}

} // namespace

void check_precision(const Config& config, config::Violations& violations) {
  const MixedPrecisionConfig& c = config.mixed_precision;
  check_recipe(config, violations);
  check_param_gather(config, violations);
  if (c.low_precision() && !on_cpu(config.device)) check_gpu_precision(config, violations);
}

namespace {

nn::StochasticGradients stochastic_gradients(const nn::Param& param, uint64_t seed,
                                             at::Device device) {
  nn::StochasticGradients s{
      .input_key = Stream(seed, "rounding for the input of " + param.name()).key(),
      .weight_key = Stream(seed, "rounding for the weight " + param.name()).key()};
  // Of a stack of matrices, the features are the second dimension.
  const auto dim = static_cast<size_t>(param.spec().stacked_dims);
  s.features.resize(static_cast<size_t>(param.shape()[dim]));
  for (const nn::LocalBox& box : nn::local_boxes(param.spec(), param.where()))
    for (int64_t i = 0; i < box.size[dim]; ++i)
      s.features[static_cast<size_t>(box.local[dim] + i)] = box.global[dim] + i;
  if (device.is_cuda()) s.device_features = nn::to_device(at::tensor(s.features), device);
  return s;
}

/// The compute capabilities with products in a recipe.
struct GpuNeed {
  int first = 0, last = 0;
  const char *versions = "", *examples = "";
};
constexpr int kAnyLater = 1 << 20;
constexpr GpuNeed kFp8Need = {89, kAnyLater, "8.9 or later", "an L40S or H100"},
                  kBlocksNeed = {90, 99, "9.x", "an H100 or H200"},
                  kTilesNeed = {100, kAnyLater, "10.0 or later", "a B200 or B300"};

bool scales_in_tiles(const MixedPrecisionConfig& c) {
  return nn::scaled_product_size(low_precision(c).x) !=
         nn::scaled_product_size(kernels::QuantRecipe::kTensorwiseE4m3);
}

/// What to set in place of the recipe where a GPU has products in FP8 with one scale per tensor, or
/// none.
std::string plainer_precision(const Config& config, bool fp8) {
  const MixedPrecisionConfig& c = config.mixed_precision;
  if (c.recipe != PrecisionRecipe::kNone) {
    using enum PrecisionRecipe;
    const bool half = config.dtype == Precision::kFp16;
    return fmt::format("mixed_precision.recipe={}",
                       config::to_string(fp8    ? half ? kFp16Fp8Tensorwise : kBf16Fp8Tensorwise
                                         : half ? PrecisionRecipe::kFp16
                                                : PrecisionRecipe::kBf16));
  }
  if (c.fp4 != Fp4Format::kNone)
    return std::string("mixed_precision.fp4=none") + (fp8 ? " mixed_precision.fp8=hybrid" : "") +
           (fp8 && c.fp8_recipe != Fp8Recipe::kTensorwise ? " mixed_precision.fp8_recipe=tensorwise"
                                                          : "");
  return fp8 ? "mixed_precision.fp8_recipe=tensorwise" : "mixed_precision.fp8=none";
}

/// The last two dimensions of a rank's part of a weight.
void check_scaled_products(const nn::Param& param, const Config& config) {
  const std::vector<int64_t>& shape = param.shape();
  const int64_t multiple = nn::scaled_product_size(low_precision(config.mixed_precision).weight);
  for (size_t dim = shape.size() - 2; dim < shape.size(); ++dim)
    if (shape[dim] % multiple != 0)
      raise<ConfigError>("with {}, GPUs need weights whose rows and columns are multiples of {}, "
                         "but {} has the shape [{}] on this rank\n  try: {}",
                         precision_recipe(config.mixed_precision), multiple, param.name(),
                         fmt::join(shape, ", "), plainer_precision(config, false));
}

} // namespace

void check_gpu_capability(const Config& config, int capability, std::string_view gpu) {
  const MixedPrecisionConfig& c = config.mixed_precision;
  const bool blocks = c.fp4 == Fp4Format::kNone && c.fp8_recipe == Fp8Recipe::kBlockwise,
             fp8 = capability >= kFp8Need.first;
  const GpuNeed& need = scales_in_tiles(c) ? kTilesNeed : blocks && fp8 ? kBlocksNeed : kFp8Need;
  if (capability >= need.first && capability <= need.last) return;
  raise<ConfigError>(
      "{} needs a GPU of compute capability {}, such as {}, and {} has {}.{}\n  try: {}",
      &need == &kFp8Need ? low_precision_setting(c) : precision_recipe(c), need.versions,
      need.examples, gpu, capability / 10, capability % 10, plainer_precision(config, fp8));
}

void plan_precision(nn::ParamList& params, const Config& config, at::Device device) {
  if (!config.mixed_precision.low_precision()) return;
  if (device.is_cuda() && kernels::built_with_cuda()) // else a device of tests
    check_gpu_capability(config, kernels::gpu_capability(device.index()),
                         kernels::gpu_name(device.index()));
  const std::vector<bool> quantised = quantised_segments(config);
  for (nn::Param& param : params) {
    if (!param.linear || !quantised[static_cast<size_t>(param.segments().front())]) continue;
    param.low_precision = low_precision(config.mixed_precision);
    param.low_precision->scaled_products = device.is_cuda();
    if (device.is_cuda()) check_scaled_products(param, config);
    if (config.mixed_precision.fp4 != Fp4Format::kNone)
      param.low_precision->stochastic = stochastic_gradients(param, config.seed, device);
  }
}

std::string precision_of_one_layout(const Config& config) {
  const MixedPrecisionConfig& c = config.mixed_precision;
  // A tensor with a scale is of a microbatch on a tensor-parallel rank.
  if (c.fp4 != Fp4Format::kNone)
    return fmt::format("mixed_precision.fp4={}", config::to_string(c.fp4));
  if (c.fp8 == Fp8Format::kNone) return {};
  const std::string key =
      fmt::format("mixed_precision.fp8_recipe={}", config::to_string(c.fp8_recipe));
  // The gradients of keys and values are quantised before they are summed over these ranks.
  if (!config.model.multi_latent_attention &&
      config.model.query_groups() < config.parallel.tensor_model_parallel_size)
    return key + " of key-value heads that several ranks share";
  if (c.fp8_recipe == Fp8Recipe::kDelayed) return {}; // scales are of all ranks
  if (c.fp8_recipe == Fp8Recipe::kTensorwise) return key;
  // Which tokens of an expert share a block depends on where they come from.
  if (config.model.num_moe_experts) return key + " of experts";
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
               : fmt::format("{}, whose blocks of {} are split by tokens, heads or ranks", key,
                             block);
}

} // namespace pentatron::trainer
