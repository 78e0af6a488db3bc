#include "pentatron/models/param_specs.h"

#include "pentatron/models/model.h"

namespace pentatron::models {

namespace {

ParamSpecs specs_of(const ModelConfig& config, bool params, bool buffers) {
  const std::unique_ptr<Model> model = make_model(config, {});
  ParamSpecs specs;
  if (params)
    for (const nn::Param& param : model->params()) specs.emplace(param.name(), param.spec());
  if (buffers)
    for (const nn::Param& buffer : model->params().buffers())
      specs.emplace(buffer.name(), buffer.spec());
  return specs;
}

} // namespace

ParamSpecs param_specs(const ModelConfig& config) {
  return specs_of(config, true, false);
}

ParamSpecs buffer_specs(const ModelConfig& config) {
  return specs_of(config, false, true);
}

ParamSpecs tensor_specs(const ModelConfig& config) {
  return specs_of(config, true, true);
}

} // namespace pentatron::models
