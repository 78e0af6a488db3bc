/// The matrix products that a run computes in low precision: the section mixed_precision as
/// properties of parameters.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pentatron/nn/param.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Sets dtype and the other keys that mixed_precision.recipe defines.
void apply_recipe(PrecisionRecipe recipe, Config& config);

/// Adds violations for settings that cannot be combined with low precision.
void check_precision(const Config& config, config::Violations& violations);

/// Throws ConfigError where a GPU of this compute capability (89 is 8.9) lacks the products.
void check_gpu_capability(const Config& config, int capability, std::string_view gpu);

/// Sets for every parameter how its products on `device` are computed. Call it before the first
/// pass. Throws ConfigError where a GPU, or the shape of a weight, does not allow these products.
void plan_precision(nn::ParamList& params, const Config& config, at::Device device);

/// By segment: whether its products are in low precision.
std::vector<bool> quantised_segments(const Config& config);
/// Whether ddp.fp8_param_gather sends codes in place of the weights of these products.
bool sends_codes(const Config& config);

/// The setting by which another layout trains another model, or nothing: scales of whole tensors,
/// and blocks that the cut of tensor parallelism divides.
std::string precision_of_one_layout(const Config& config);

} // namespace pentatron::trainer
