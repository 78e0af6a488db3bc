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

models::ActivationFunction read_activation(const ConfigReader& in, const char* key,
                                           const std::string& otherwise, bool gated) {
  using A = models::ActivationFunction;
  const auto name = in.get<std::string>(key, otherwise);
  if (name == "silu" || name == "swish") return gated ? A::kSwiGlu : A::kSilu;
  if (name == "gelu" || name == "gelu_python") return gated ? A::kGeGlu : A::kGelu;
  // gelu_fast has sqrt(2 / pi) to ten digits.
  for (const char* tanh :
       {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate", "gelu_fast"})
    if (name == tanh) return gated ? A::kGeGluTanh : A::kGeluTanh;
  if (name == "relu") return gated ? A::kReGlu : A::kRelu;
  if (!gated && name == "relu2") return A::kSquaredRelu;
  if (name == "quick_gelu") return gated ? A::kQuickGeGlu : A::kQuickGelu;
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
