#include "pentatron/checkpoint/hf/hf_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/tensor_io.h"

namespace pentatron::checkpoint {

namespace {

std::vector<WeightMapEntry> gpt2_map(const models::GptConfig& c) {
  std::vector<WeightMapEntry> map = {{"transformer.wte.weight", "embedding.word.weight", ""},
                                     {"transformer.wpe.weight", "embedding.position.weight", ""}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string hf = fmt::format("transformer.h.{}.", i), own = fmt::format("layers.{}.", i);
    const auto add = [&](const char* theirs, const char* ours, bool matrix) {
      map.push_back({hf + theirs + ".weight", own + ours + ".weight", "", matrix});
      map.push_back({hf + theirs + ".bias", own + ours + ".bias", ""});
    };
    add("ln_1", "attention_norm", false);
    add("attn.c_attn", "attention.qkv", true);
    add("attn.c_proj", "attention.proj", true);
    add("ln_2", "mlp_norm", false);
    add("mlp.c_fc", "mlp.fc1", true);
    add("mlp.c_proj", "mlp.fc2", true);
  }
  map.push_back({"transformer.ln_f.weight", "final_norm.weight", ""});
  map.push_back({"transformer.ln_f.bias", "final_norm.bias", ""});
  if (c.untie_embeddings_and_output_weights) map.push_back({"lm_head.weight", "output.weight", ""});
  return map;
}

/// Llama, Mistral and Qwen.
std::vector<WeightMapEntry> llama_map(const models::GptConfig& c) {
  std::vector<WeightMapEntry> map = {{"model.embed_tokens.weight", "embedding.word.weight", ""}};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string hf = fmt::format("model.layers.{}.", i), own = fmt::format("layers.{}.", i);
    const auto add = [&](const char* theirs, const char* ours, const char* part, bool bias) {
      map.push_back({hf + theirs + ".weight", own + ours + ".weight", part});
      if (bias) map.push_back({hf + theirs + ".bias", own + ours + ".bias", part});
    };
    add("self_attn.q_proj", "attention.qkv", "q", c.add_qkv_bias);
    add("self_attn.k_proj", "attention.qkv", "k", c.add_qkv_bias);
    add("self_attn.v_proj", "attention.qkv", "v", c.add_qkv_bias);
    add("self_attn.o_proj", "attention.proj", "", c.add_attention_proj_bias);
    if (c.qk_layernorm) {
      add("self_attn.q_norm", "attention.q_norm", "", false);
      add("self_attn.k_norm", "attention.k_norm", "", false);
    }
    add("mlp.gate_proj", "mlp.fc1", "gate", c.add_mlp_bias);
    add("mlp.up_proj", "mlp.fc1", "up", c.add_mlp_bias);
    add("mlp.down_proj", "mlp.fc2", "", c.add_mlp_bias);
    add("input_layernorm", "attention_norm", "", false);
    add("post_attention_layernorm", "mlp_norm", "", false);
  }
  map.push_back({"model.norm.weight", "final_norm.weight", ""});
  if (c.untie_embeddings_and_output_weights) map.push_back({"lm_head.weight", "output.weight", ""});
  return map;
}

/// The first few; a wrong model gives one for every tensor.
std::string shortened(const std::vector<std::string>& problems) {
  constexpr size_t kShown = 5;
  const size_t shown = std::min(kShown, problems.size());
  std::string text =
      fmt::format("{}", fmt::join(problems.begin(),
                                  problems.begin() + static_cast<std::ptrdiff_t>(shown), "; "));
  if (problems.size() > shown) text += fmt::format("; and {} more", problems.size() - shown);
  return text;
}

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() &&
         std::string_view(text).substr(text.size() - end.size()) == end;
}

/// Tensors of older files that are no parameters: causal masks, rotary tables, a second copy of
/// tied weights.
bool is_known_extra(const std::string& name, const HfModel& model) {
  if (ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
      ends_with(name, ".rotary_emb.inv_freq"))
    return true;
  return name == "lm_head.weight" && !model.config.untie_embeddings_and_output_weights;
}

/// The part of the parameter's true shape that an entry covers.
std::vector<int64_t> entry_shape(const nn::Param& param, const WeightMapEntry& entry) {
  std::vector<int64_t> shape = param.spec().shape;
  shape[0] = nn::part_range(param.spec(), entry.part).rows;
  if (entry.transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

/// Finds a tensor under its name, or without the "transformer." that files of the first GPT-2 lack.
const SafeTensor* find_tensor(const SafetensorsFolder& files, const std::string& name,
                              std::set<std::string>& used) {
  for (const std::string& candidate : {name, name.substr(name.find('.') + 1)}) {
    if (const SafeTensor* tensor = files.find(candidate)) {
      used.insert(candidate);
      return tensor;
    }
  }
  return nullptr;
}

} // namespace

std::vector<WeightMapEntry> weight_map(const HfModel& model) {
  return model.family == "gpt2" ? gpt2_map(model.config) : llama_map(model.config);
}

void load_hf_weights(const std::filesystem::path& folder, const HfModel& model,
                     nn::ParamList& params) {
  load_hf_weights(folder, model, params, [&](const std::function<void(nn::Param&)>& fill) {
    for (nn::Param& param : params) fill(param);
  });
}

void load_hf_weights(const std::filesystem::path& folder, const HfModel& model,
                     nn::ParamList& params, const EachParam& each) {
  const SafetensorsFolder files(folder);
  std::vector<std::string> problems;
  std::set<std::string> used;
  std::map<std::string, std::vector<std::pair<WeightMapEntry, const SafeTensor*>>> by_param;
  for (const WeightMapEntry& entry : weight_map(model)) {
    const SafeTensor* tensor = find_tensor(files, entry.hf, used);
    if (tensor == nullptr) {
      problems.push_back(fmt::format("{} is missing", entry.hf));
      continue;
    }
    const nn::Param* const param = params.find_or_null(entry.param);
    if (param == nullptr) continue; // of another pipeline stage
    const std::vector<int64_t> expected = entry_shape(*param, entry);
    if (tensor->shape != expected) {
      problems.push_back(fmt::format("{} has shape [{}] and not [{}]", entry.hf,
                                     fmt::join(tensor->shape, ", "), fmt::join(expected, ", ")));
      continue;
    }
    if (!at::isFloatingType(scalar_type(tensor->dtype))) {
      problems.push_back(fmt::format("{} is of type {}", entry.hf, name_of(tensor->dtype)));
      continue;
    }
    by_param[entry.param].push_back({entry, tensor});
  }
  for (const auto& [name, tensor] : files.tensors()) {
    if (!used.contains(name) && !is_known_extra(name, model))
      problems.push_back(fmt::format("{} is not part of the model", name));
  }
  if (!problems.empty()) {
    raise<CheckpointError>("{} does not hold the {} model that its config.json describes: {}",
                           folder.string(), model.family, shortened(problems));
  }
  each([&](nn::Param& param) {
    at::Tensor global = at::empty(param.spec().shape, at::TensorOptions(param.dtype()));
    for (const auto& [entry, tensor] : by_param.at(param.name())) {
      const nn::PartRange range = nn::part_range(param.spec(), entry.part);
      const at::Tensor source = to_tensor(*tensor, /*borrow=*/true);
      global.narrow(0, range.begin, range.rows).copy_(entry.transposed ? source.t() : source);
    }
    nn::load_global(param, global);
  });
  files.check_sizes();
}

std::map<std::string, at::Tensor>
export_hf(const HfModel& model, nn::ParamList& params,
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
