#include "pentatron/checkpoint/upcycle.h"

#include <ATen/ATen.h>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/config/config.h"
#include "pentatron/models/model.h"

namespace pentatron::checkpoint {

namespace {

constexpr std::string_view kExperts = ".mlp.experts.";

/// layers.0.mlp.experts.fc1.weight -> layers.0.mlp.fc1.weight; empty: not of experts
std::string dense_name(const std::string& name) {
  const size_t at = name.find(kExperts);
  if (at == std::string::npos) return {};
  return name.substr(0, at) + ".mlp." + name.substr(at + kExperts.size());
}

models::ModelConfig with_experts(models::ModelConfig c, const UpcycleOptions& o) {
  if (c.num_moe_experts)
    raise<ConfigError>("--experts {}: the model has {} experts\n  try: a dense model", o.experts,
                       *c.num_moe_experts);
  if (o.top_k == 1 && o.experts > 1)
    raise<ConfigError>("--experts-topk 1: the weights of one expert would not sum to 1, so the "
                       "model would compute something else\n  try: --experts-topk 2");
  if (o.top_k > o.experts)
    raise<ConfigError>("--experts-topk {} is more than --experts {}\n  try: --experts-topk {}",
                       o.top_k, o.experts, o.experts);
  c.num_moe_experts = o.experts;
  c.moe_router_topk = o.top_k;
  c.moe_ffn_hidden_size = c.ffn_size();
  c.ffn_hidden_size = c.ffn_size();
  c.preset.clear();
  if (models::model_spec(c).expert_layers.empty())
    raise<ConfigError>("--experts {}: a model of type {} cannot have experts\n  try: a model of "
                       "type gpt",
                       o.experts, config::to_string(c.type));
  return c;
}

class UpcycledSource final : public ModelSource {
 public:
  UpcycledSource(ModelSource& dense, const UpcycleOptions& options)
      : ModelSource(dense.facts()), dense_(dense) {
    const SafeDtype dtype = dense.dtype();
    facts_.config = with_experts(facts_.config, options);
    facts_.family.clear();
    facts_.hf = Json::object();
    facts_.tensors.clear();
    for (const auto& [name, spec] : models::tensor_specs(facts_.config)) {
      const std::string& before = of(name);
      const auto found = dense.facts().tensors.find(before);
      facts_.tensors[name] = {found != dense.facts().tensors.end() ? found->second.dtype : dtype,
                              spec.shape};
      if (found == dense.facts().tensors.end()) make_router(name, spec);
    }
  }

  void read(const std::string& param, const Box& box, const at::Tensor& target) override {
    if (const auto made = routers_.find(param); made != routers_.end()) {
      at::Tensor part = made->second;
      for (size_t d = 0; d < box.size.size(); ++d)
        part = part.narrow(static_cast<int64_t>(d), box.offset[d], box.size[d]);
      at::Tensor(target).copy_(part);
      return;
    }
    if (dense_name(param).empty()) return dense_.read(param, box, target);
    const Box one{{box.offset.begin() + 1, box.offset.end()},
                  {box.size.begin() + 1, box.size.end()}};
    for (int64_t e = 0; e < box.size[0]; ++e) dense_.read(of(param), one, target.select(0, e));
  }

 private:
  /// Where the numbers of a tensor come from.
  static std::string of(const std::string& name) {
    const std::string dense = dense_name(name);
    return dense.empty() ? name : dense;
  }

  void make_router(const std::string& name, const nn::ShardSpec& spec) {
    PT_DCHECK(name.ends_with(".router.weight"));
    nn::Param param(spec, nn::Init::normal(facts_.config.init_method_std), at::kFloat, {});
    param.set_value(at::empty(spec.shape, at::kFloat));
    param.initialize(/*seed=*/0);
    routers_[name] = param.value();
  }

  ModelSource& dense_;
  std::map<std::string, at::Tensor> routers_;
};

} // namespace

std::unique_ptr<ModelSource> upcycled(ModelSource& dense, const UpcycleOptions& options) {
  return std::make_unique<UpcycledSource>(dense, options);
}

} // namespace pentatron::checkpoint
