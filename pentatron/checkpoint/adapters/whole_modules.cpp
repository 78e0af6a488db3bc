#include "pentatron/checkpoint/adapters/whole_modules.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/nearest.h"
#include "pentatron/checkpoint/adapters/adapter_modules.h"
#include "pentatron/checkpoint/hf/hf_export.h"
#include "pentatron/models/model.h"
#include "pentatron/models/parts.h"
#include "pentatron/models/word_table.h"

namespace pentatron::checkpoint {

namespace {

/// All parameters that PEFT's models have, by name.
std::map<std::string, WholeParam> all_params(const models::ModelConfig& config,
                                             const std::string& family) {
  const std::unique_ptr<models::Model> model = models::make_model(config, {});
  std::map<std::string, WholeParam> all;
  for (const nn::Param& param : model->params()) {
    if (param.name().starts_with("mtp.")) continue;
    const bool word_table = param.name() == models::kWordTable && param.segments().size() > 1;
    all.emplace(
        param.name(),
        WholeParam{.name = param.name(),
                   .shape = param.spec().shape,
                   .tensors = {},
                   .tied = word_table && !config.untie_embeddings_and_output_weights,
                   .shared = word_table && models::encoder_and_decoder_share_words(config)});
  }
  std::optional<std::string> found;
  try {
    found = make_hf_config(config, family).family;
  } catch (const ConfigError&) { // then under our names alone
  }
  if (found) {
    for (WeightMapEntry& entry : weight_map({*found, config}, HfNames::kParameters))
      if (const auto param = all.find(entry.param); param != all.end())
        param->second.tensors.push_back(std::move(entry));
  } else {
    for (auto& [name, param] : all)
      param.tensors.push_back({.hf = name,
                               .param = name,
                               .origin = std::vector<int64_t>(param.shape.size(), 0),
                               .shape = param.shape});
  }
  return all;
}

bool chooses_tensor(const std::string& pattern, const WeightMapEntry& entry) {
  return matches_within(pattern, module_of_tensor(entry.hf)) ||
         matches_within(pattern, module_of_tensor(entry.param));
}

bool chooses_param(const std::string& pattern, const WholeParam& param) {
  return std::ranges::any_of(
      param.tensors, [&](const WeightMapEntry& entry) { return chooses_tensor(pattern, entry); });
}

std::vector<std::string> ends_of(const std::map<std::string, WholeParam>& all) {
  std::vector<std::string> ends;
  for (const auto& [name, param] : all)
    for (const WeightMapEntry& entry : param.tensors)
      if (const std::string end = last_of(module_of_tensor(entry.hf));
          std::ranges::find(ends, end) == ends.end())
        ends.push_back(end);
  return ends;
}

/// As an override has it.
std::string list_text(const std::vector<std::string>& names) {
  std::vector<std::string> texts;
  for (const std::string& name : names)
    texts.push_back(name.find_first_of("*?[]!") == std::string::npos ? name
                                                                     : fmt::format("\"{}\"", name));
  return fmt::format("[{}]", fmt::join(texts, ","));
}

/// A name that matches nothing, and what to write instead.
void refuse_unknown(const std::string& pattern, const std::vector<std::string>& patterns,
                    const std::vector<std::string>& ends, bool tied, const std::string& key,
                    config::Violations& violations) {
  constexpr const char* kEmbedding = "embed_tokens";
  const bool output = tied && pattern == "lm_head";
  const std::string other = !output ? nearest(pattern, ends)
                            : std::ranges::find(ends, kEmbedding) != ends.end() ? kEmbedding
                                                                                : "";
  std::vector<std::string> better;
  for (const std::string& name : patterns)
    if (const std::string& kept = name == pattern ? other : name;
        !kept.empty() && std::ranges::find(better, kept) == better.end())
      better.push_back(kept);
  violations.add(
      key,
      fmt::format("{} contains \"{}\", which matches no module of the model{}; its modules are {}",
                  key, pattern, output ? ", whose output layer is its embedding" : "",
                  fmt::join(ends, ", ")),
      fmt::format("{}={}", key, list_text(better)));
}

/// An embedding that PEFT could not train as the model has it.
void refuse_shared(const WholeParam& param, const std::string& module,
                   const std::vector<std::string>& patterns, const std::string& key,
                   config::Violations& violations) {
  std::vector<std::string> without = patterns;
  std::erase_if(without, [&](const std::string& pattern) { return chooses_param(pattern, param); });
  violations.add(
      key,
      fmt::format("{} contains {}, which {}", key, module,
                  param.shared ? "encoder and decoder share; adapters of PEFT cannot train it for "
                                 "both"
                               : "is the output layer, too; adapters of PEFT can train both "
                                 "together only under the name embed_tokens"),
      fmt::format("{}={}", key, list_text(without)));
}

} // namespace

std::string module_of_tensor(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

std::vector<std::string> names_of_all_modules(const models::ModelConfig& config,
                                              const std::string& family) {
  std::vector<std::string> names;
  for (const auto& [name, param] : all_params(config, family))
    for (const WeightMapEntry& entry : param.tensors) names.push_back(module_of_tensor(entry.hf));
  return names;
}

std::vector<std::string> names_of_modules(const std::vector<WholeParam>& params) {
  std::vector<std::string> names;
  for (const WholeParam& param : params)
    for (const WeightMapEntry& entry : param.tensors)
      if (const std::string module = module_of_tensor(entry.hf);
          std::ranges::find(names, module) == names.end())
        names.push_back(module);
  std::vector<std::string> outer;
  for (const std::string& name : names)
    if (std::ranges::none_of(
            names, [&](const std::string& other) { return name.starts_with(other + "."); }))
      outer.push_back(name);
  return outer;
}

std::vector<WholeParam> whole_params(const models::ModelConfig& config, const std::string& family,
                                     const AdapterSettings& settings,
                                     config::Violations& violations, std::string_view path) {
  if (settings.modules_to_save.empty()) return {};
  const std::string key = config::join(path, "modules_to_save");
  std::map<std::string, WholeParam> all = all_params(config, family);
  const std::vector<std::string> ends = ends_of(all);
  for (const std::string& pattern : settings.modules_to_save) {
    if (std::ranges::none_of(all,
                             [&](const auto& one) { return chooses_param(pattern, one.second); }))
      refuse_unknown(pattern, settings.modules_to_save, ends,
                     !config.untie_embeddings_and_output_weights, key, violations);
  }
  std::vector<WholeParam> chosen;
  for (auto& [name, param] : all) {
    std::vector<std::string> others;
    const WeightMapEntry* first = nullptr;
    for (const WeightMapEntry& entry : param.tensors) {
      if (std::ranges::any_of(settings.modules_to_save, [&](const std::string& pattern) {
            return chooses_tensor(pattern, entry);
          }))
        first = first == nullptr ? &entry : first;
      else
        others.push_back(last_of(module_of_tensor(entry.hf)));
    }
    if (first == nullptr) continue;
    if (param.shared || (param.tied && !module_of_tensor(first->hf).ends_with("embed_tokens")))
      refuse_shared(param, module_of_tensor(first->hf), settings.modules_to_save, key, violations);
    if (others.empty()) {
      chosen.push_back(std::move(param));
      continue;
    }
    std::vector<std::string> together = settings.modules_to_save;
    together.insert(together.end(), others.begin(), others.end());
    violations.add(key,
                   fmt::format("{} chooses {} without {}, but they are one parameter, {}, which "
                               "trains as a whole",
                               key, module_of_tensor(first->hf), fmt::join(others, " and "), name),
                   fmt::format("{}={}", key, list_text(together)));
    break;
  }
  return chosen;
}

} // namespace pentatron::checkpoint
