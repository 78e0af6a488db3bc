#include "pentatron/parallelize/load_model.h"

#include <set>
#include <utility>

namespace pentatron::parallelize {

RankModel load_model(checkpoint::ModelSource& source, ModelOptions options,
                     const comm::ParallelGroups& groups, const PipelinePlan& plan) {
  options.config = options.config.without_mtp();
  std::set<const nn::Param*> lent;
  if (!options.gradients && options.device.is_cpu())
    options.prepare = [&](nn::ParamList& params) { lent = source.lend(params); };
  RankModel model = make_model(options, groups, plan);
  nn::ParamList& params = model.model->params();
  source.load(params, [&](const std::function<void(nn::Param&)>& fill) {
    for (nn::Param& param : params)
      if (!lent.contains(&param)) fill(param);
  });
  return model;
}

} // namespace pentatron::parallelize
