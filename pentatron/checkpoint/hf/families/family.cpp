#include "pentatron/checkpoint/hf/families/family.h"

#include <algorithm>
#include <array>

#include "pentatron/checkpoint/hf/families/all.h"

namespace pentatron::checkpoint {

std::span<const Family> families() {
  static const std::array all = {
      llama_family(),     mistral_family(),     qwen2_family(),   qwen3_family(),
      phi3_family(),      olmo2_family(),       glm4_family(),    gemma2_family(),
      gemma3_family(),    mixtral_family(),     olmoe_family(),   qwen2_moe_family(),
      qwen3_moe_family(), deepseek_v3_family(), gpt_oss_family(), gpt2_family(),
      bert_family(),      roberta_family(),     t5_family()};
  return all;
}

std::vector<std::string> spellings(const Family& family, const std::string& name) {
  std::vector<std::string> all = {name};
  if (!family.base_prefix.empty() && name.starts_with(family.base_prefix))
    all.push_back(name.substr(family.base_prefix.size()));
  for (size_t i = 0, own = all.size(); i < own; ++i)
    for (const auto& [now, then] : family.older_endings)
      if (name.ends_with(now))
        all.push_back(all[i].substr(0, all[i].size() - now.size()) + std::string(then));
  return all;
}

const Family* find_family(std::string_view model_type) {
  const auto found = std::ranges::find(families(), model_type, &Family::model_type);
  return found == families().end() ? nullptr : &*found;
}

std::string family_list() {
  std::string text;
  for (size_t i = 0; i < families().size(); ++i) {
    if (i > 0) text += i + 1 < families().size() ? ", " : " and ";
    text += families()[i].model_type;
  }
  return text;
}

namespace {

struct ActivationName {
  std::string_view name;
  models::ActivationFunction plain;
  std::optional<models::ActivationFunction> gated;
};

std::span<const ActivationName> known_activations() {
  using A = models::ActivationFunction;
  static constexpr ActivationName kAll[] = {
      {"relu", A::kRelu, A::kReGlu},
      {"gelu", A::kGelu, A::kGeGlu},
      {"gelu_python", A::kGelu, A::kGeGlu},
      {"gelu_new", A::kGeluTanh, A::kGeGluTanh},
      {"gelu_pytorch_tanh", A::kGeluTanh, A::kGeGluTanh},
      {"gelu_python_tanh", A::kGeluTanh, A::kGeGluTanh},
      {"gelu_accurate", A::kGeluTanh, A::kGeGluTanh},
      {"gelu_fast", A::kGeluTanh, A::kGeGluTanh}, // has sqrt(2 / pi) to ten digits
      {"quick_gelu", A::kQuickGelu, A::kQuickGeGlu},
      {"silu", A::kSilu, A::kSwiGlu},
      {"swish", A::kSilu, A::kSwiGlu},
      {"relu2", A::kSquaredRelu, std::nullopt}};
  return kAll;
}

} // namespace

std::vector<std::string_view> gated_activation_names() {
  std::vector<std::string_view> names;
  for (const ActivationName& activation : known_activations())
    if (activation.gated) names.push_back(activation.name);
  return names;
}

std::optional<models::ActivationFunction> find_activation(std::string_view name, bool gated) {
  const auto all = known_activations();
  const auto found = std::ranges::find(all, name, &ActivationName::name);
  if (found == all.end()) return std::nullopt;
  return gated ? found->gated : found->plain;
}

models::ActivationFunction read_activation(const ConfigReader& in, const char* key,
                                           const std::string& otherwise, bool gated) {
  const auto name = in.get<std::string>(key, otherwise);
  if (const auto found = find_activation(name, gated)) return *found;
  in.refuse(fmt::format("{}={}{}", key, name, gated ? " in a gated MLP" : ""));
}

std::string activation_name(models::ActivationFunction f) {
  using A = models::ActivationFunction;
  switch (f) {
  case A::kSilu:
  case A::kSwiGlu:
    return "silu";
  case A::kGelu:
  case A::kGeGlu:
    return "gelu";
  case A::kGeluTanh:
    return "gelu_new";
  case A::kGeGluTanh:
    return "gelu_pytorch_tanh";
  case A::kRelu:
  case A::kReGlu:
    return "relu";
  case A::kSquaredRelu:
    return "relu2";
  case A::kQuickGelu:
  case A::kQuickGeGlu:
    return "quick_gelu";
  }
  PT_DCHECK(false);
}

} // namespace pentatron::checkpoint
