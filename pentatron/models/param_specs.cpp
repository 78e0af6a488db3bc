#include "pentatron/models/param_specs.h"

#include "pentatron/models/gpt.h"

namespace pentatron::models {

ParamSpecs param_specs(const ModelConfig& config) {
  Gpt model(config, {});
  ParamSpecs specs;
  for (const nn::Param& param : model.params()) specs.emplace(param.name(), param.spec());
  return specs;
}

} // namespace pentatron::models
