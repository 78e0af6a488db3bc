#include "pentatron/models/param_specs.h"

#include "pentatron/models/model.h"

namespace pentatron::models {

ParamSpecs param_specs(const ModelConfig& config) {
  const std::unique_ptr<Model> model = make_model(config, {});
  ParamSpecs specs;
  for (const nn::Param& param : model->params()) specs.emplace(param.name(), param.spec());
  return specs;
}

} // namespace pentatron::models
