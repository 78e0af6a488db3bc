#define PCRE2_CODE_UNIT_WIDTH 8
#include "pentatron/checkpoint/adapters/peft_settings.h"

#include <pcre2.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/adapters/whole_modules.h"
#include "pentatron/checkpoint/hf/parts.h"
#include "pentatron/models/word_table.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

SafetensorsFile open_peft_tensors(const fs::path& folder) {
  const fs::path file = folder / kPeftTensors;
  std::error_code error;
  if (!fs::exists(file, error) && fs::exists(folder / "adapter_model.bin", error))
    raise<DataError>("{} has its tensors in adapter_model.bin, which contains pickled objects; "
                     "these can run code and are not loaded\n  try: save the adapter as "
                     "Safetensors, with save_pretrained(DIR) of peft",
                     folder.string());
  return SafetensorsFile(file);
}

namespace {

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

/// What the tensors in the file belong to: linear layers and embeddings, which all rules have
/// chosen, or the modules with several parameters that experts are.
std::vector<std::string> owners_in(const fs::path& folder) {
  std::vector<std::string> names;
  const SafetensorsFile stored = open_peft_tensors(folder);
  for (const auto& [name, tensor] : stored.tensors())
    for (const std::string_view end : {".lora_A.weight", ".lora_embedding_A"})
      if (name.starts_with(kPeftPrefix) && name.ends_with(end))
        names.push_back(
            name.substr(kPeftPrefix.size(), name.size() - kPeftPrefix.size() - end.size()));
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

/// The names in modules_to_save.
std::vector<std::string> saved_ends(const Json& json, const std::string& where) {
  const auto found = json.find("modules_to_save");
  if (found == json.end() || says_nothing(*found)) return {};
  return json_get<std::vector<std::string>>(json, "modules_to_save", where);
}

/// The modules in the file that modules_to_save names, and those within them.
std::vector<std::string> saved_modules(const Json& json, const fs::path& folder,
                                       const std::string& where) {
  const std::vector<std::string> ends = saved_ends(json, where);
  if (ends.empty()) return {};
  std::set<std::string> names;
  const SafetensorsFile stored = open_peft_tensors(folder);
  for (const auto& [name, tensor] : stored.tensors()) {
    if (!name.starts_with(kPeftPrefix) || name.find(".lora_") != std::string::npos) continue;
    const std::string module = module_of_tensor(name.substr(kPeftPrefix.size()));
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

/// What the keys of patterns are compared with, and the module that is meant.
struct PatternName {
  std::string key; ///< of a module, or of a parameter if that is what PEFT adapts
  std::string module;
};

bool ends_in(const std::string& name, const std::string& end) {
  return name == end || name.ends_with("." + end);
}

/// Of linear layers, and of experts' parameters.
std::vector<PatternName> names_in(const fs::path& folder,
                                  const std::vector<std::string>& parameters) {
  std::map<std::string, std::string> names; // once each
  for (const std::string& owner : owners_in(folder)) {
    const std::string module = owner.substr(0, owner.find(".base_layer"));
    if (!module.ends_with(kExperts)) {
      const std::string weight = owner + std::string(kWeightEnd);
      const bool is_parameter = std::ranges::any_of(
          parameters, [&](const std::string& name) { return ends_in(weight, name); });
      names.emplace(is_parameter ? weight : owner, owner);
      continue;
    }
    for (const std::string& parameter : parameters)
      if (!parameter.ends_with(kWeightEnd)) {
        const std::string name = module + "." + parameter.substr(parameter.rfind('.') + 1);
        names.emplace(name, name);
      }
  }
  std::vector<PatternName> all;
  for (const auto& [key, module] : names) all.push_back({key, module});
  return all;
}

/// {"q_proj": 8} as ["q_proj=8"]; a regular expression as the names in the file that it matches.
/// What matches no module of the adapter means nothing, and of several that match one the first in
/// the file counts, as for PEFT.
std::vector<std::string> pattern_of(const OrderedJson& json, const char* key,
                                    const std::vector<std::string>& parameters,
                                    const fs::path& folder, const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return {};
  if (!found->is_object()) raise<DataError>("{}: {} is not an object", where, key);
  const std::vector<PatternName> names =
      found->empty() ? std::vector<PatternName>() : names_in(folder, parameters);
  const auto entry = [](const std::string& name, const OrderedJson& value) {
    return fmt::format("{}={}", name, value.get<double>());
  };
  std::map<std::string, std::string> of_module; // their entries
  std::vector<std::string> written;             // as they are in the file
  bool plain =
      std::ranges::all_of(names, [](const PatternName& name) { return name.key == name.module; });
  for (const auto& [name, value] : found->items()) {
    if (!value.is_number()) raise<DataError>("{}: {} of {} is not a number", where, key, name);
    const ModulePattern pattern(name, fmt::format("{}: {}", where, key));
    bool matches = false;
    for (const PatternName& one : names) {
      if (!pattern.matches(one.key)) continue;
      matches = true;
      plain = of_module.emplace(one.module, entry(one.module, value)).second && plain;
    }
    if (matches) written.push_back(entry(name, value));
    plain = plain && (!matches || name.find_first_of(kSpecial) == std::string::npos);
  }
  if (plain) return written;
  std::vector<std::string> entries;
  for (const auto& [module, text] : of_module) entries.push_back(text);
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

} // namespace

AdapterSettings read_peft_settings(const fs::path& folder) {
  const fs::path file = folder / kPeftConfig;
  std::error_code error;
  const fs::path exported = folder / "adapter"; // of a run
  if (!fs::exists(file, error))
    raise<DataError>("{} contains no {}, so it is not an adapter\n  try: {}", folder.string(),
                     kPeftConfig,
                     fs::exists(exported / kPeftConfig, error)
                         ? exported.string()
                         : "a folder that save_pretrained() of peft has written");
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
  // In the order of the file.
  const OrderedJson ordered = read_ordered_json(file);
  const auto parameters =
      json_get_or<std::vector<std::string>>(json, "target_parameters", {}, where);
  AdapterSettings settings{
      .type = json_get_or<bool>(json, "use_dora", false, where) ? AdapterType::kDora
                                                                : AdapterType::kLora,
      .r = json_get<int64_t>(json, "r", where),
      .alpha = json_get<double>(json, "lora_alpha", where),
      .dropout = json_get_or<double>(json, "lora_dropout", 0, where),
      .target_modules = targets_of(json, folder, where),
      .modules_to_save = saved_modules(json, folder, where),
      .use_rslora = json_get_or<bool>(json, "use_rslora", false, where),
      .rank_pattern = pattern_of(ordered, "rank_pattern", parameters, folder, where),
      .alpha_pattern = pattern_of(ordered, "alpha_pattern", parameters, folder, where)};
  return settings;
}

void check_peft_tying(const fs::path& folder, const std::string& module) {
  const fs::path file = folder / kPeftConfig;
  const std::string where = file.string();
  if (!ensures_tying(read_json(file), where))
    raise<ConfigError>("{}: modules_to_save has {} without ensure_weight_tying, so that the "
                       "modules that share this weight in the model would differ, which is not "
                       "supported\n  try: an adapter that was trained with "
                       "ensure_weight_tying=True",
                       where, module);
}

bool ties_adapters(const fs::path& folder) {
  const fs::path file = folder / kPeftConfig;
  if (!ensures_tying(read_json(file), file.string())) return false;
  const SafetensorsFile stored = open_peft_tensors(folder);
  return std::ranges::any_of(
      stored.tensors(), [](const auto& one) { return one.first.ends_with(".lora_embedding_A"); });
}

void check_saved_modules(const fs::path& folder, const AdapterSettings& settings,
                         const models::ModelConfig& config, const std::string& family) {
  constexpr const char* kOutput = "lm_head";
  if (models::has_plain_output_layer(config) && !config.untie_embeddings_and_output_weights &&
      std::ranges::find(settings.modules_to_save, kOutput) != settings.modules_to_save.end())
    check_peft_tying(folder, kOutput);
  const fs::path file = folder / kPeftConfig;
  const std::vector<std::string> ends = saved_ends(read_json(file), file.string());
  if (ends.empty()) return;
  const std::vector<std::string> all = names_of_all_modules(config, family);
  for (const std::string& end : ends) {
    const auto is_meant = [&](const std::string& module) { return ends_within(module, end); };
    if (std::ranges::none_of(settings.modules_to_save, is_meant) &&
        std::ranges::any_of(all, is_meant)) // others are those of other models, for PEFT too
      raise<CheckpointError>(
          "{} contains {} in modules_to_save, but {} has no weights of it\n  "
          "try: an adapter that save_pretrained() of peft has written completely",
          file.string(), end, kPeftTensors);
  }
}

} // namespace pentatron::checkpoint
