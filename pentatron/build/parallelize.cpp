#include "pentatron/build/parallelize.h"

#include <ATen/ATen.h>

namespace pentatron::build {

RankModel make_model(const ModelOptions& options, const Groups& groups) {
  RankModel model;
  model.gpt = std::make_unique<models::Gpt>(
      options.config,
      models::GptBuild{.dtype = options.dtype, .tp = groups.tp, .recompute = options.recompute});
  model.store =
      std::make_unique<nn::ResidentStore>(model.gpt->params(), options.device, options.gradients);
  model.gpt->finish(options.device, options.max_sequence);
  return model;
}

} // namespace pentatron::build
