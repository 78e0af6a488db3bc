#include "pentatron/checkpoint/adapters/peft_files.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/hf/parts.h"
#include "pentatron/checkpoint/source_facts.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/models/word_table.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

/// The names of tensors in the files. Of several parameters of one module, as experts have, the
/// first is wrapped first, and so the innermost.
class Names {
 public:
  explicit Names(const std::vector<AdaptedModule>& modules) : modules_(modules) {}

  std::string operator()(const AdaptedModule& one, const char* what) const {
    if (one.module.experts == 0) return fmt::format("{}{}.{}", kPeftPrefix, one.module.hf, what);
    const std::string owner = owner_of(one.module.hf);
    std::string inner;
    for (const AdaptedModule& other : modules_)
      if (&other > &one && other.module.experts > 0 && owner_of(other.module.hf) == owner)
        inner += "base_layer.";
    return fmt::format("{}{}.{}{}", kPeftPrefix, owner, inner, what);
  }

 private:
  static std::string owner_of(const std::string& name) { return name.substr(0, name.rfind('.')); }
  const std::vector<AdaptedModule>& modules_;
};

/// PEFT has the adapter of an embedding as that of the transposed table: its A is our B.
bool is_embedding(const AdaptedModule& one) {
  return one.module.use == nn::AdaptedUse::kEmbedding;
}
const char* a_in_names(const AdaptedModule& one) {
  return is_embedding(one) ? "lora_embedding_B" : "lora_A.weight";
}
const char* b_in_names(const AdaptedModule& one) {
  return is_embedding(one) ? "lora_embedding_A" : "lora_B.weight";
}

std::vector<int64_t> a_shape(const AdaptedModule& one) {
  if (is_embedding(one)) return {one.module.columns, one.rank};
  return {one.rank * std::max<int64_t>(1, one.module.experts), one.module.columns};
}
std::vector<int64_t> b_shape(const AdaptedModule& one) {
  if (is_embedding(one)) return {one.rank, one.module.rows};
  return {one.module.rows, one.rank * std::max<int64_t>(1, one.module.experts)};
}

/// Rows of B as our parameter has them, and back.
WeightMapEntry rows_of(const AdaptedModule& one) {
  return {.hf = {}, .param = {}, .alternating = one.module.alternating, .parts_dim = 1};
}

/// Of experts: [E rank, in] as [E, rank, in], and [out, rank E] as [E, out, rank].
at::Tensor a_of_file(const AdaptedModule& one, const at::Tensor& a) {
  if (is_embedding(one)) return a.t().contiguous();
  return one.module.experts == 0 ? a : a.unflatten(0, {one.module.experts, one.rank});
}
at::Tensor b_of_file(const AdaptedModule& one, const at::Tensor& b) {
  if (is_embedding(one)) return b.t().contiguous();
  if (one.module.experts == 0) return b;
  return as_parameter(rows_of(one),
                      b.unflatten(1, {one.rank, one.module.experts}).permute({2, 0, 1}))
      .contiguous();
}
at::Tensor a_in_file(const AdaptedModule& one, const at::Tensor& a) {
  if (is_embedding(one)) return a.t().contiguous();
  const at::Tensor own = a.narrow(one.module.experts > 0 ? 1 : 0, one.first, one.rank);
  return (one.module.experts > 0 ? own.flatten(0, 1) : own).contiguous();
}
at::Tensor b_in_file(const AdaptedModule& one, const at::Tensor& b) {
  if (is_embedding(one)) return b.t().contiguous();
  if (one.module.experts == 0) return b;
  return as_hf(rows_of(one), b).permute({1, 2, 0}).flatten(1, 2).contiguous();
}

std::string a_name(const AdaptedModule& one) {
  return nn::adapter_name(one.module.weight, "lora_A");
}
std::string b_name(const AdaptedModule& one) {
  return nn::adapter_name(one.module.weight, "lora_B", one.module.part);
}
std::string magnitude_name(const AdaptedModule& one) {
  return nn::adapter_name(one.module.weight, "lora_magnitude", one.module.part);
}

/// The elements of a parameter that a tensor in the files has.
at::Tensor part_of(const at::Tensor& whole, const WeightMapEntry& entry) {
  at::Tensor part = whole;
  for (size_t d = 0; d < entry.shape.size(); ++d)
    part = part.narrow(static_cast<int64_t>(d), entry.origin[d], entry.shape[d]);
  return entry.one_of_stack ? part.squeeze(0) : part;
}

/// What PEFT names in target_modules and target_parameters.
struct Targets {
  std::set<std::string> modules, parameters;
  bool changes_mlps = false;                         ///< linear layers of an MLP are parameters
  std::map<const AdaptedModule*, std::string> names; ///< as patterns have them
};

/// A module is named "q_proj" where all layers of that name have adapters, else completely. In a
/// model with experts PEFT takes the name of a linear layer in an MLP, even a complete one, for
/// that of the experts; it reads the adapter if the layer's weight is named as a parameter, which
/// can have neither DoRA nor dropout.
Targets targets_for(const Adapter& adapter, const std::vector<LinearModule>& all) {
  static const std::set<std::string> kOfExperts = {"gate_proj", "up_proj", "down_proj"};
  const bool moe = std::ranges::any_of(all, [](const auto& one) { return one.experts > 0; });
  const auto is_of_mlp = [&](const LinearModule& one) {
    return moe && adapter.settings.type == AdapterType::kLora &&
           kOfExperts.contains(last_of(one.hf));
  };
  const auto is_module = [&](const LinearModule& one) {
    return one.experts == 0 && !one.router && !is_of_mlp(one);
  };
  std::map<std::string, int64_t> left; // of each name, how many have none
  for (const LinearModule& one : all)
    if (is_module(one)) ++left[last_of(one.hf)];
  for (const AdaptedModule& one : adapter.modules)
    if (is_module(one.module)) --left[last_of(one.module.hf)];
  Targets targets;
  for (const AdaptedModule& one : adapter.modules) {
    const std::string& hf = one.module.hf;
    if (is_module(one.module)) {
      targets.names[&one] = hf;
      targets.modules.insert(left[last_of(hf)] == 0 ? last_of(hf) : hf);
      continue;
    }
    targets.names[&one] = one.module.experts > 0 ? hf : hf + ".weight";
    targets.parameters.insert(targets.names[&one]);
    targets.changes_mlps |= one.module.experts == 0 && !one.module.router;
  }
  return targets;
}

/// A parameter of its tensors, in a type that loses nothing.
at::Tensor whole_of_parts(const WholeParam& param, const std::vector<at::Tensor>& parts) {
  at::ScalarType type = parts.front().scalar_type();
  for (const at::Tensor& part : parts) type = at::promote_types(type, part.scalar_type());
  at::Tensor whole = at::empty(param.shape, type);
  for (size_t i = 0; i < parts.size(); ++i)
    part_of(whole, param.tensors[i]).copy_(as_parameter(param.tensors[i], parts[i]));
  return whole;
}

/// Whether it is another name of an embedding that the adapter has, and equal to it.
bool repeats_embedding(const SafeTensor& tensor, const std::vector<WholeParam>& whole,
                       const std::vector<std::vector<at::Tensor>>& parts) {
  for (size_t i = 0; i < whole.size(); ++i)
    if (whole[i].tied && parts[i].size() == 1 && parts[i][0].defined() &&
        tensor.shape == whole[i].shape && is_weight_dtype(tensor.dtype) &&
        at::equal(parts[i][0], to_tensor(tensor)))
      return true;
  return false;
}

} // namespace

Adapter adapter_parts(const AdapterSettings& settings, const models::ModelConfig& config,
                      const std::string& family, config::Violations& violations,
                      std::string_view path) {
  Adapter parts{.settings = settings,
                .modules = {},
                .whole = whole_params(config, family, settings, violations, path),
                .tables = {},
                .tensors = {}};
  const std::vector<LinearModule> all = linear_modules(config, family);
  parts.modules = adapted_modules(all, settings, parts.whole, violations, path);
  std::ranges::copy_if(all, std::back_inserter(parts.tables), [](const LinearModule& one) {
    return one.use == nn::AdaptedUse::kEmbedding || one.use == nn::AdaptedUse::kOutput;
  });
  return parts;
}

void refuse_copy(const fs::path& folder, const BaseCopy& copy) {
  raise<CheckpointError>(
      "{} contains {}, whose values are not those of the model\n  try: the model that the adapter "
      "was trained for, or save_pretrained(DIR, save_embedding_layers=False) of peft",
      (folder / kPeftTensors).string(), copy.name);
}

void read_peft_tensors(const fs::path& folder, Adapter& adapter) {
  const std::vector<AdaptedModule>& modules = adapter.modules;
  const bool dora = adapter.settings.type == AdapterType::kDora;
  for (const WholeParam& param : adapter.whole)
    if (param.tied) check_peft_tying(folder, module_of_tensor(param.tensors.front().hf));
  const SafetensorsFile stored = open_peft_tensors(folder);
  TensorProblems problems;
  std::set<std::string> used;
  const auto take = [&](const std::vector<std::string>& names,
                        const std::vector<int64_t>& shape) -> at::Tensor {
    for (const std::string& name : names) {
      const SafeTensor* const tensor = stored.find(name);
      if (tensor == nullptr) continue;
      used.insert(name);
      if (tensor->shape != shape)
        problems.misfit(fmt::format("{} has shape {} instead of {}", name,
                                    shape_text(tensor->shape), shape_text(shape)));
      else if (!is_weight_dtype(tensor->dtype))
        problems.misfit(fmt::format("{} is of type {}", name, name_of(tensor->dtype)));
      else if (at::Tensor values = to_tensor(*tensor); !at::isfinite(values).all().item<bool>())
        problems.misfit(name + " has values that are not finite");
      else
        return values;
      return {};
    }
    problems.missing(names.front());
    return {};
  };
  const Names hf_name(modules);
  std::vector<at::Tensor> a;
  AdapterTensors& tensors = adapter.tensors;
  for (const AdaptedModule& one : modules) {
    a.push_back(take({hf_name(one, a_in_names(one))}, a_shape(one)));
    tensors[b_name(one)] = take({hf_name(one, b_in_names(one))}, b_shape(one));
    const std::string copy = hf_name(one, "base_layer.weight");
    if (one.module.use != nn::AdaptedUse::kLinear && stored.find(copy) != nullptr)
      adapter.copies.push_back({.name = copy,
                                .param = one.module.values,
                                .values = take({copy}, {one.module.rows, one.module.columns})});
    if (dora)
      tensors[magnitude_name(one)] = take(
          {hf_name(one, "lora_magnitude_vector"), hf_name(one, "lora_magnitude_vector.weight")},
          {one.module.rows});
  }
  std::vector<std::vector<at::Tensor>> parts; // of each whole parameter
  for (const WholeParam& param : adapter.whole) {
    std::vector<at::Tensor>& own = parts.emplace_back();
    for (const WeightMapEntry& entry : param.tensors)
      own.push_back(take({std::string(kPeftPrefix) + entry.hf}, entry.hf_shape()));
  }
  for (const LinearModule& table : adapter.tables) { // with save_embedding_layers=True
    const std::string name = fmt::format("{}{}.weight", kPeftPrefix, table.hf);
    const auto trains = std::ranges::find(adapter.whole, table.values, &WholeParam::name);
    if (stored.find(name) == nullptr || used.contains(name) || trains != adapter.whole.end())
      continue;
    adapter.copies.push_back(
        {.name = name, .param = table.values, .values = take({name}, {table.rows, table.columns})});
  }
  for (const auto& [name, tensor] : stored.tensors())
    if (!used.contains(name) && !repeats_embedding(tensor, adapter.whole, parts))
      problems.unexpected(name);
  problems.throw_if_any(fmt::format("the tensors in {} do not match the model and its {}",
                                    (folder / kPeftTensors).string(), kPeftConfig));
  for (size_t i = 0; i < modules.size(); ++i) {
    const AdaptedModule& one = modules[i];
    at::Tensor& b = tensors.at(b_name(one));
    b = b_of_file(one, b);
    const at::Tensor own = a_of_file(one, a[i]); // behind those of the weight's parts before
    at::Tensor& all = tensors[a_name(one)];
    all = all.defined() ? at::cat({all, own}, one.module.experts > 0 ? 1 : 0) : own;
  }
  for (size_t i = 0; i < parts.size(); ++i)
    tensors[adapter.whole[i].name] = whole_of_parts(adapter.whole[i], parts[i]);
}

void write_peft(const fs::path& folder, const Adapter& adapter,
                const std::vector<LinearModule>& all, const std::string& base_model,
                const std::string& task) {
  const AdapterSettings& settings = adapter.settings;
  std::map<std::string, at::Tensor> files;
  const Names hf_name(adapter.modules);
  const Targets targets = targets_for(adapter, all);
  Json ranks = Json::object(), alphas = Json::object();
  const auto number = [](double value) -> Json { // as PEFT writes it, where it can
    return value == std::floor(value) && std::abs(value) < 1e15 ? Json(static_cast<int64_t>(value))
                                                                : Json(value);
  };
  for (const AdaptedModule& one : adapter.modules) {
    if (one.rank != settings.r) ranks[targets.names.at(&one)] = one.rank;
    if (one.alpha != settings.alpha) alphas[targets.names.at(&one)] = number(one.alpha);
    files[hf_name(one, a_in_names(one))] = a_in_file(one, adapter.tensors.at(a_name(one)));
    files[hf_name(one, b_in_names(one))] = b_in_file(one, adapter.tensors.at(b_name(one)));
    if (settings.type == AdapterType::kDora)
      files[hf_name(one, "lora_magnitude_vector")] = adapter.tensors.at(magnitude_name(one));
  }
  for (const WholeParam& param : adapter.whole)
    for (const WeightMapEntry& entry : param.tensors)
      files[std::string(kPeftPrefix) + entry.hf] =
          as_hf(entry, part_of(adapter.tensors.at(param.name), entry));
  for (const WholeParam& param : adapter.whole)
    if (param.tied) // PEFT reads both names of what it ties
      files[std::string(kPeftPrefix) + "lm_head.weight"] = adapter.tensors.at(param.name).clone();
  const std::vector<std::string> saved = names_of_modules(adapter.whole);
  write_tensors(folder / kPeftTensors, files, {{"format", "pt"}});
  const Json config = {
      {"peft_type", "LORA"},
      {"task_type", task.empty() ? Json() : Json(task)},
      {"base_model_name_or_path", base_model},
      {"inference_mode", true},
      {"r", settings.r},
      {"lora_alpha", number(settings.alpha)},
      {"lora_dropout", targets.changes_mlps ? 0 : settings.dropout},
      {"target_modules", targets.modules},
      {"target_parameters", targets.parameters.empty() ? Json() : Json(targets.parameters)},
      {"use_rslora", settings.use_rslora},
      {"use_dora", settings.type == AdapterType::kDora},
      {"rank_pattern", ranks},
      {"alpha_pattern", alphas},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"init_lora_weights", true},
      {"modules_to_save", saved.empty() ? Json() : Json(saved)},
      {"ensure_weight_tying", std::ranges::any_of(adapter.whole, &WholeParam::tied)}};
  write_file_atomically(folder / kPeftConfig, dump_json(config, 2) + "\n");
}

} // namespace pentatron::checkpoint
