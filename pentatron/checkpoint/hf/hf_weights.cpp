#include "pentatron/checkpoint/hf/hf_weights.h"

#include <ATen/ATen.h>

#include "pentatron/checkpoint/hf/parts.h"

namespace pentatron::checkpoint {

std::map<std::string, at::Tensor>
hf_tensors(const HfModel& model, nn::ParamList& params,
           const std::function<at::Tensor(const nn::Param&)>& local) {
  std::map<std::string, at::Tensor> result;
  for (const WeightMapEntry& entry : weight_map(model, HfNames::kParameters)) {
    const nn::Param& param = params.find(entry.param);
    const at::Tensor source = local(param);
    at::Tensor part = at::zeros(param.spec().shape, source.options());
    nn::store_global(param, source, part);
    for (size_t d = 0; d < entry.shape.size(); ++d)
      part = part.narrow(static_cast<int64_t>(d), entry.origin[d], entry.shape[d]);
    if (entry.one_of_stack) part = part.squeeze(0);
    result[entry.hf] = as_hf(entry, part);
  }
  return result;
}

} // namespace pentatron::checkpoint
