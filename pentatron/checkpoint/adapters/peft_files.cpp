#define PCRE2_CODE_UNIT_WIDTH 8
#include "pentatron/checkpoint/adapters/peft_files.h"

#include <ATen/ATen.h>
#include <pcre2.h>

#include <algorithm>
#include <cmath>
#include <memory>
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

constexpr std::string_view kPrefix = "base_model.model.";

/// Fields that may have any value: they describe the file, or how it began.
const std::set<std::string, std::less<>> kIgnored = {"peft_type",       "base_model_name_or_path",
                                                     "revision",        "peft_version",
                                                     "task_type",       "inference_mode",
                                                     "auto_mapping",    "init_lora_weights",
                                                     "loftq_config",    "eva_config",
                                                     "corda_config",    "lora_ga_config",
                                                     "megatron_config", "megatron_core",
                                                     "runtime_config",  "qalora_group_size"};
const std::set<std::string, std::less<>> kRead = {"r",
                                                  "lora_alpha",
                                                  "lora_dropout",
                                                  "target_modules",
                                                  "target_parameters",
                                                  "modules_to_save",
                                                  "ensure_weight_tying",
                                                  "layers_to_transform",
                                                  "layers_pattern",
                                                  "exclude_modules",
                                                  "use_rslora",
                                                  "use_dora",
                                                  "rank_pattern",
                                                  "alpha_pattern",
                                                  "bias",
                                                  "fan_in_fan_out"};

bool says_nothing(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         ((value.is_object() || value.is_array()) && value.empty());
}

constexpr std::string_view kSpecial = "^$*+?()[]{}|\\";

/// Whether the modules are chosen by more than a list of names.
bool chosen_by_rules(const Json& json) {
  for (const char* key : {"layers_to_transform", "layers_pattern", "exclude_modules"})
    if (const auto found = json.find(key); found != json.end() && !says_nothing(*found))
      return true;
  const auto found = json.find("target_modules");
  return found != json.end() && found->is_string() &&
         found->get<std::string>().find_first_of(kSpecial) != std::string::npos;
}

SafetensorsFile open_tensors(const fs::path& folder) {
  const fs::path file = folder / kPeftTensors;
  std::error_code error;
  if (!fs::exists(file, error) && fs::exists(folder / "adapter_model.bin", error))
    raise<DataError>("{} has its tensors in adapter_model.bin, which contains pickled objects; "
                     "these can run code and are not loaded\n  try: save the adapter as "
                     "Safetensors, with save_pretrained(DIR) of peft",
                     folder.string());
  return SafetensorsFile(file);
}

/// What the tensors in the file belong to: linear layers and embeddings, which all rules have
/// chosen, or the modules with several parameters that experts are.
std::vector<std::string> owners_in(const fs::path& folder) {
  std::vector<std::string> names;
  const SafetensorsFile stored = open_tensors(folder);
  for (const auto& [name, tensor] : stored.tensors())
    for (const std::string_view end : {".lora_A.weight", ".lora_embedding_A"})
      if (name.starts_with(kPrefix) && name.ends_with(end))
        names.push_back(name.substr(kPrefix.size(), name.size() - kPrefix.size() - end.size()));
  return names;
}

bool ensures_tying(const Json& json, const std::string& where) {
  return json_get_or<bool>(json, "ensure_weight_tying", false, where);
}

/// Whether PEFT chooses the module, or one that contains it, by the end of its name.
bool ends_within(const std::string& module, const std::string& end) {
  if (module.ends_with(end)) return true;
  const size_t dot = module.rfind('.');
  return dot != std::string::npos && ends_within(module.substr(0, dot), end);
}

/// The modules in the file that modules_to_save names, and those within them.
std::vector<std::string> saved_modules(const Json& json, const fs::path& folder,
                                       const std::string& where) {
  const auto found = json.find("modules_to_save");
  if (found == json.end() || says_nothing(*found)) return {};
  const auto ends = json_get<std::vector<std::string>>(json, "modules_to_save", where);
  std::set<std::string> names;
  const SafetensorsFile stored = open_tensors(folder);
  for (const auto& [name, tensor] : stored.tensors()) {
    if (!name.starts_with(kPrefix) || name.find(".lora_") != std::string::npos) continue;
    const std::string module = module_of_tensor(name.substr(kPrefix.size()));
    if (std::ranges::any_of(ends, [&](const std::string& end) { return ends_within(module, end); }))
      names.insert(module);
  }
  return {names.begin(), names.end()};
}

/// A key of rank_pattern or alpha_pattern as PEFT reads it: it matches the end of a name.
class ModulePattern {
 public:
  ModulePattern(const std::string& key, const std::string& where) {
    int error = 0;
    PCRE2_SIZE at = 0;
    const std::string whole = "^(?:.*\\.)?(?:" + key + ")$";
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(), PCRE2_UTF,
                              &error, &at, nullptr));
    if (!code_)
      raise<DataError>("{}: \"{}\" is not a regular expression\n  try: the name of a module, such "
                       "as \"q_proj\"",
                       where, excerpt(key, 80));
  }
  bool matches(const std::string& name) const {
    const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr), pcre2_match_data_free);
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0,
                       data.get(), nullptr) >= 0;
  }

 private:
  std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code_{nullptr, pcre2_code_free};
};

constexpr std::string_view kWeightEnd = ".weight", kExperts = "experts";

/// A name of target_parameters as one of target_modules: that of a router's module, or of matrices
/// of experts. "gate" alone would also be the gate of an MLP.
std::string target_of_parameter(const std::string& name) {
  if (name == "gate.weight") return "mlp.gate";
  if (name.ends_with(kWeightEnd)) return name.substr(0, name.size() - kWeightEnd.size());
  return name.find('.') == std::string::npos ? fmt::format("{}.{}", kExperts, name) : name;
}

/// Names that the patterns may be meant for: those of linear layers, and of experts' parameters.
std::set<std::string> names_in(const fs::path& folder, const std::vector<std::string>& parameters) {
  std::set<std::string> names;
  for (const std::string& owner : owners_in(folder)) {
    const std::string module = owner.substr(0, owner.find(".base_layer"));
    if (!module.ends_with(kExperts)) {
      names.insert(owner);
      continue;
    }
    for (const std::string& parameter : parameters)
      if (!parameter.ends_with(kWeightEnd))
        names.insert(module + "." + parameter.substr(parameter.rfind('.') + 1));
  }
  return names;
}

/// {"q_proj": 8} as ["q_proj=8"]; a regular expression as the names in the file that it matches.
std::vector<std::string> pattern_of(const Json& json, const char* key, const fs::path& folder,
                                    const std::string& where) {
  std::vector<std::string> entries;
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return entries;
  if (!found->is_object()) raise<DataError>("{}: {} is not an object", where, key);
  for (const auto& [name, value] : found->items()) {
    if (!value.is_number()) raise<DataError>("{}: {} of {} is not a number", where, key, name);
    if (name.find_first_of(kSpecial) == std::string::npos) {
      entries.push_back(fmt::format("{}={}", name, value.get<double>()));
      continue;
    }
    const ModulePattern pattern(name, fmt::format("{}: {}", where, key));
    const auto parameters =
        json_get_or<std::vector<std::string>>(json, "target_parameters", {}, where);
    for (const std::string& module : names_in(folder, parameters))
      if (pattern.matches(module))
        entries.push_back(fmt::format("{}={}", module, value.get<double>()));
  }
  return entries;
}

std::vector<std::string> targets_of(const Json& json, const fs::path& folder,
                                    const std::string& where) {
  std::vector<std::string> names;
  for (const std::string& parameter :
       json_get_or<std::vector<std::string>>(json, "target_parameters", {}, where))
    names.push_back(target_of_parameter(parameter));
  const auto found = json.find("target_modules");
  // What PEFT ties is not in target_modules.
  if (chosen_by_rules(json) || (names.empty() && ensures_tying(json, where))) {
    if (!names.empty())
      raise<ConfigError>("{}: target_parameters beside modules chosen by a regular expression, "
                         "numbers of layers or exclude_modules is not supported\n  try: "
                         "target_modules with a list of names, such as [\"q_proj\", \"v_proj\"]",
                         where);
    names = owners_in(folder);
  } else if (found != json.end() && found->is_string()) {
    names.push_back(found->get<std::string>());
  } else {
    for (std::string& name :
         json_get_or<std::vector<std::string>>(json, "target_modules", {}, where))
      names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

/// The names of tensors in the files. Of several parameters of one module, as experts have, the
/// first is wrapped first, and so the innermost.
class Names {
 public:
  explicit Names(const std::vector<AdaptedModule>& modules) : modules_(modules) {}

  std::string operator()(const AdaptedModule& one, const char* what) const {
    if (one.module.experts == 0) return fmt::format("{}{}.{}", kPrefix, one.module.hf, what);
    const std::string owner = owner_of(one.module.hf);
    std::string inner;
    for (const AdaptedModule& other : modules_)
      if (&other > &one && other.module.experts > 0 && owner_of(other.module.hf) == owner)
        inner += "base_layer.";
    return fmt::format("{}{}.{}{}", kPrefix, owner, inner, what);
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

/// "q_proj" where all layers of that name have adapters, else whole names.
std::set<std::string> targets_for(const std::vector<AdaptedModule>& modules,
                                  const std::vector<LinearModule>& all) {
  const auto last = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  std::map<std::string, int64_t> left; // of each name, how many have none
  const auto listed = [](const LinearModule& one) { return one.experts == 0 && !one.router; };
  for (const LinearModule& one : all)
    if (listed(one)) ++left[last(one.hf)];
  for (const AdaptedModule& one : modules)
    if (listed(one.module)) --left[last(one.module.hf)];
  std::set<std::string> targets;
  for (const AdaptedModule& one : modules)
    if (listed(one.module))
      targets.insert(left[last(one.module.hf)] == 0 ? last(one.module.hf) : one.module.hf);
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

/// PEFT trains a copy of a module. Only if it says so is it also the other one that had the weight.
void check_tying(const fs::path& folder, const std::string& module) {
  const fs::path file = folder / kPeftConfig;
  const std::string where = file.string();
  if (!ensures_tying(read_json(file), where))
    raise<ConfigError>("{}: modules_to_save has {} without ensure_weight_tying, so that the "
                       "modules that share this weight in the model would differ, which is not "
                       "supported\n  try: an adapter that was trained with "
                       "ensure_weight_tying=True",
                       where, module);
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

AdapterSettings read_peft_settings(const fs::path& folder) {
  const fs::path file = folder / kPeftConfig;
  std::error_code error;
  if (!fs::exists(file, error))
    raise<DataError>("{} contains no {}, so it is not an adapter\n  try: a folder that "
                     "save_pretrained() of peft has written",
                     folder.string(), kPeftConfig);
  const std::string where = file.string();
  const Json json = read_json(file);
  if (!json.is_object()) raise<DataError>("{} is not an object", where);
  if (const auto type = json_get<std::string>(json, "peft_type", where); type != "LORA")
    raise<ConfigError>(
        "{}: peft_type={} is not supported, only LORA\n  try: a LoRA or DoRA adapter", where, type);
  std::vector<std::string> refused;
  for (const auto& [key, value] : json.items())
    if (!kIgnored.contains(key) && !kRead.contains(key) && !says_nothing(value))
      refused.push_back(fmt::format("{}={}", key, dump_json(value)));
  if (const auto bias = json_get_or<std::string>(json, "bias", "none", where); bias != "none")
    refused.push_back(fmt::format("bias=\"{}\"", bias));
  if (const auto init = json.find("init_lora_weights");
      init != json.end() && init->is_string() && *init != "gaussian" && *init != "eva" &&
      *init != "orthogonal" && *init != "lora_ga") // those change the base
    refused.push_back(fmt::format("init_lora_weights={}", dump_json(*init)));
  if (!refused.empty())
    raise<ConfigError>("{} uses {}, which is not supported\n  try: an adapter without {}", where,
                       fmt::join(refused, ", "), refused.size() == 1 ? "it" : "them");
  AdapterSettings settings{.type = json_get_or<bool>(json, "use_dora", false, where)
                                       ? AdapterType::kDora
                                       : AdapterType::kLora,
                           .r = json_get<int64_t>(json, "r", where),
                           .alpha = json_get<double>(json, "lora_alpha", where),
                           .dropout = json_get_or<double>(json, "lora_dropout", 0, where),
                           .target_modules = targets_of(json, folder, where),
                           .modules_to_save = saved_modules(json, folder, where),
                           .use_rslora = json_get_or<bool>(json, "use_rslora", false, where),
                           .rank_pattern = pattern_of(json, "rank_pattern", folder, where),
                           .alpha_pattern = pattern_of(json, "alpha_pattern", folder, where)};
  return settings;
}

Adapter adapter_parts(const AdapterSettings& settings, const models::ModelConfig& config,
                      const std::string& family, config::Violations& violations,
                      std::string_view path) {
  Adapter parts{.settings = settings,
                .modules = {},
                .whole = whole_params(config, family, settings, violations, path),
                .tensors = {}};
  parts.modules =
      adapted_modules(linear_modules(config, family), settings, parts.whole, violations, path);
  return parts;
}

bool ties_adapters(const fs::path& folder) {
  const fs::path file = folder / kPeftConfig;
  if (!ensures_tying(read_json(file), file.string())) return false;
  const SafetensorsFile stored = open_tensors(folder);
  return std::ranges::any_of(
      stored.tensors(), [](const auto& one) { return one.first.ends_with(".lora_embedding_A"); });
}

void refuse_copy(const fs::path& folder, const BaseCopy& copy) {
  raise<CheckpointError>(
      "{} contains {}, whose values are not those of the model\n  try: the model that the adapter "
      "was trained for, or save_pretrained(DIR, save_embedding_layers=False) of peft",
      (folder / kPeftTensors).string(), copy.name);
}

void check_output_layer(const fs::path& folder, const AdapterSettings& settings,
                        const models::ModelConfig& config) {
  constexpr const char* kOutput = "lm_head";
  if (models::has_plain_output_layer(config) && !config.untie_embeddings_and_output_weights &&
      std::ranges::find(settings.modules_to_save, kOutput) != settings.modules_to_save.end())
    check_tying(folder, kOutput);
}

void read_peft_tensors(const fs::path& folder, Adapter& adapter) {
  const std::vector<AdaptedModule>& modules = adapter.modules;
  const bool dora = adapter.settings.type == AdapterType::kDora;
  for (const WholeParam& param : adapter.whole)
    if (param.tied) check_tying(folder, module_of_tensor(param.tensors.front().hf));
  const SafetensorsFile stored = open_tensors(folder);
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
      own.push_back(take({std::string(kPrefix) + entry.hf}, entry.hf_shape()));
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
  const std::set<std::string> targets = targets_for(adapter.modules, all);
  std::set<std::string> parameters;
  for (const AdaptedModule& one : adapter.modules)
    if (one.module.experts > 0) parameters.insert(one.module.hf);
  for (const AdaptedModule& one : adapter.modules)
    if (one.module.router) parameters.insert(one.module.hf + std::string(kWeightEnd));
  Json ranks = Json::object(), alphas = Json::object();
  const auto number = [](double value) -> Json { // as PEFT writes it, where it can
    return value == std::floor(value) && std::abs(value) < 1e15 ? Json(static_cast<int64_t>(value))
                                                                : Json(value);
  };
  for (const AdaptedModule& one : adapter.modules) {
    if (one.rank != settings.r) ranks[one.module.hf] = one.rank;
    if (one.alpha != settings.alpha) alphas[one.module.hf] = number(one.alpha);
    files[hf_name(one, a_in_names(one))] = a_in_file(one, adapter.tensors.at(a_name(one)));
    files[hf_name(one, b_in_names(one))] = b_in_file(one, adapter.tensors.at(b_name(one)));
    if (settings.type == AdapterType::kDora)
      files[hf_name(one, "lora_magnitude_vector")] = adapter.tensors.at(magnitude_name(one));
  }
  for (const WholeParam& param : adapter.whole)
    for (const WeightMapEntry& entry : param.tensors)
      files[std::string(kPrefix) + entry.hf] =
          as_hf(entry, part_of(adapter.tensors.at(param.name), entry));
  for (const WholeParam& param : adapter.whole)
    if (param.tied) // PEFT reads both names of what it ties
      files[std::string(kPrefix) + "lm_head.weight"] = adapter.tensors.at(param.name).clone();
  const std::vector<std::string> saved = names_of_modules(adapter.whole);
  write_tensors(folder / kPeftTensors, files, {{"format", "pt"}});
  const Json config = {
      {"peft_type", "LORA"},
      {"task_type", task.empty() ? Json() : Json(task)},
      {"base_model_name_or_path", base_model},
      {"inference_mode", true},
      {"r", settings.r},
      {"lora_alpha", number(settings.alpha)},
      {"lora_dropout", settings.dropout},
      {"target_modules", targets},
      {"target_parameters", parameters.empty() ? Json() : Json(parameters)},
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
