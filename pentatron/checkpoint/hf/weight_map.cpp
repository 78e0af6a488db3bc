#include "pentatron/checkpoint/hf/weight_map.h"

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/hf/families/family.h"
#include "pentatron/models/param_specs.h"

namespace pentatron::checkpoint {

namespace {

WeightMapEntry place(TensorNames::Entry name, const models::ParamSpecs& specs) {
  const auto found = specs.find(name.param);
  PT_DCHECK(found != specs.end());
  const nn::ShardSpec& spec = found->second;
  WeightMapEntry entry{.hf = std::move(name.hf),
                       .param = std::move(name.param),
                       .transposed = name.transposed,
                       .alternating = name.alternating ? std::ssize(spec.parts) : 1,
                       .parts_dim = spec.parts_dim,
                       .one_of_stack = name.expert >= 0,
                       .origin = std::vector<int64_t>(spec.shape.size(), 0),
                       .shape = spec.shape};
  const nn::PartRange range = nn::part_range(spec, name.part);
  const auto dim = static_cast<size_t>(spec.parts_dim);
  entry.origin[dim] = range.begin;
  entry.shape[dim] = range.rows;
  if (entry.one_of_stack) {
    entry.origin[0] = name.expert;
    entry.shape[0] = 1;
  }
  return entry;
}

} // namespace

std::vector<int64_t> WeightMapEntry::hf_shape() const {
  std::vector<int64_t> result(shape.begin() + (one_of_stack ? 1 : 0), shape.end());
  if (transposed) std::swap(result[result.size() - 2], result[result.size() - 1]);
  return result;
}

std::vector<WeightMapEntry> weight_map(const HfModel& model, HfNames kind) {
  const Family* const family = find_family(model.family);
  PT_DCHECK(family != nullptr);
  TensorNames names(kind);
  family->names(model.config, names);
  const models::ParamSpecs specs = models::tensor_specs(model.config),
                           buffers = models::buffer_specs(model.config);
  std::vector<WeightMapEntry> map;
  for (TensorNames::Entry& name : names.take()) {
    const bool buffer = buffers.contains(name.param);
    if (buffer && kind == HfNames::kParameters) continue;
    map.push_back(place(std::move(name), specs));
    map.back().buffer = buffer;
  }
  return map;
}

std::vector<std::pair<std::string, std::string>> hf_copies(const HfModel& model) {
  const Family* const family = find_family(model.family);
  if (family == nullptr || family->copies == nullptr) return {};
  return family->copies(model.config);
}

bool is_fixed_table(std::string_view hf_name) {
  return hf_name.ends_with(".attn.bias") || hf_name.ends_with(".attn.masked_bias") ||
         hf_name.ends_with(".rotary_emb.inv_freq") || hf_name.ends_with("embeddings.position_ids");
}

bool is_known_extra(std::string_view hf_name, const HfModel& model) {
  if (is_fixed_table(hf_name)) return true;
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
