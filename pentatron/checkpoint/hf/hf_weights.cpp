#include "pentatron/checkpoint/hf/hf_weights.h"

#include <ATen/ATen.h>

#include "pentatron/checkpoint/hf/weight_map.h"

namespace pentatron::checkpoint {

std::map<std::string, at::Tensor>
hf_tensors(const HfModel& model, nn::ParamList& params,
           const std::function<at::Tensor(const nn::Param&)>& local) {
  std::map<std::string, at::Tensor> result;
  for (const WeightMapEntry& entry : weight_map(model)) {
    const nn::Param& param = params.find(entry.param);
    const at::Tensor source = local(param);
    at::Tensor global = at::zeros(param.spec().shape, source.options());
    nn::store_global(param, source, global);
    const nn::PartRange range = nn::part_range(param.spec(), entry.part);
    const at::Tensor part = global.narrow(0, range.begin, range.rows);
    result[entry.hf] = (entry.transposed ? part.t() : part).contiguous();
  }
  return result;
}

} // namespace pentatron::checkpoint
