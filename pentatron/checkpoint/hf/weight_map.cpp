#include "pentatron/checkpoint/hf/weight_map.h"

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/hf/families/family.h"
#include "pentatron/models/param_specs.h"

namespace pentatron::checkpoint {

namespace {

/// The shape of the parameter, and the rows that a part of a fused one covers.
void place(WeightMapEntry& entry, const models::ParamSpecs& specs) {
  const auto found = specs.find(entry.param);
  PT_DCHECK(found != specs.end());
  entry.shape = found->second.shape;
  const nn::PartRange range = nn::part_range(found->second, entry.part);
  entry.begin = range.begin;
  entry.shape[0] = range.rows;
}

} // namespace

std::vector<int64_t> WeightMapEntry::hf_shape() const {
  std::vector<int64_t> result = shape;
  if (transposed) std::reverse(result.begin(), result.end());
  return result;
}

std::vector<WeightMapEntry> weight_map(const HfModel& model) {
  const Family* const family = find_family(model.family);
  PT_DCHECK(family != nullptr);
  TensorNames names;
  family->names(model.config, names);
  const models::ParamSpecs specs = models::param_specs(model.config);
  std::vector<WeightMapEntry> map;
  for (TensorNames::Entry& name : names.take()) {
    map.push_back(
        {std::move(name.hf), std::move(name.param), std::move(name.part), name.transposed});
    place(map.back(), specs);
  }
  return map;
}

bool is_known_extra(std::string_view hf_name, const HfModel& model) {
  if (hf_name.ends_with(".attn.bias") || hf_name.ends_with(".attn.masked_bias") ||
      hf_name.ends_with(".rotary_emb.inv_freq"))
    return true;
  if (hf_name == "lm_head.weight" && !model.config.untie_embeddings_and_output_weights) return true;
  const Family* const family = find_family(model.family);
  if (family != nullptr && family->is_extra != nullptr && family->is_extra(hf_name, model.config))
    return true;
  return !original_of(hf_name, model).empty();
}

std::string original_of(std::string_view hf_name, const HfModel& model) {
  const Family* const family = find_family(model.family);
  if (family == nullptr || family->original_of == nullptr) return {};
  return family->original_of(hf_name, model.config);
}

} // namespace pentatron::checkpoint
