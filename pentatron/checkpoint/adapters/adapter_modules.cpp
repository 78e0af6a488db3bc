#include "pentatron/checkpoint/adapters/adapter_modules.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/hf/hf_export.h"
#include "pentatron/checkpoint/hf/weight_map.h"
#include "pentatron/models/model.h"
#include "pentatron/models/parts.h"

namespace pentatron::checkpoint {

namespace {

constexpr std::string_view kWeight = ".weight";
constexpr const char* kAllLinear = "all-linear";
constexpr std::string_view kRouter = ".router.weight";

struct AdaptableWeight {
  nn::ShardSpec spec;
  nn::AdaptedUse use;
  std::string values; ///< the parameter with its values
};

std::map<std::string, AdaptableWeight> adaptable_weights(const models::ModelConfig& config) {
  const std::unique_ptr<models::Model> model = models::make_model(config, {});
  std::map<std::string, AdaptableWeight> weights;
  using Use = nn::AdaptedUse;
  for (const nn::Param& param : model->params()) {
    if (param.name().starts_with("mtp.")) continue; // which PEFT's models lack
    for (const Use use : {Use::kLinear, Use::kTokenWise, Use::kEmbedding, Use::kOutput})
      if ((param.adaptable & static_cast<uint8_t>(use)) != 0)
        weights.emplace(use == Use::kOutput ? models::kOutputWeight : param.name(),
                        AdaptableWeight{.spec = param.spec(), .use = use, .values = param.name()});
  }
  return weights;
}

std::string without_weight(const std::string& name) {
  return name.substr(0, name.size() - kWeight.size());
}

/// Rows [begin, begin + rows) of the weight, which are whole parts of it.
LinearModule module_of(const std::string& weight, const AdaptableWeight& adaptable, int64_t begin,
                       int64_t rows) {
  const nn::ShardSpec& spec = adaptable.spec;
  LinearModule module{.hf = {},
                      .own = without_weight(weight),
                      .own_part = {},
                      .weight = weight,
                      .values = adaptable.values,
                      .part = {},
                      .first_row = begin,
                      .rows = rows,
                      .columns = spec.shape.back(),
                      .use = adaptable.use,
                      .router = weight.ends_with(kRouter),
                      .experts = spec.stacked_dims > 0 ? spec.shape[0] : 0};
  if (spec.parts.size() > 1) {
    int64_t at = 0;
    module.count = 0;
    for (size_t i = 0; i < spec.parts.size(); ++i) {
      const nn::FusedPart& part = spec.parts[i];
      if (at == begin) module.first = i;
      if (at >= begin && at < begin + rows) {
        module.part += (module.part.empty() ? "" : ".") + part.name;
        ++module.count;
      }
      at += part.pieces * part.piece_size;
    }
  }
  module.own_part = module.own + (module.part.empty() ? "" : "." + module.part);
  module.hf = module.own_part;
  return module;
}

bool matches(const std::string& pattern, const LinearModule& module) {
  return matches_module(pattern, module.hf) || matches_module(pattern, module.own) ||
         matches_module(pattern, module.own_part);
}

bool is_word_table(const LinearModule& module) {
  return module.use == nn::AdaptedUse::kEmbedding || module.use == nn::AdaptedUse::kOutput;
}

bool trains_whole(const AdapterSettings& settings, const LinearModule& module) {
  const std::string hf = module.experts > 0 ? module_of_tensor(module.hf) : module.hf;
  return std::ranges::any_of(settings.modules_to_save, [&](const std::string& pattern) {
    return matches_within(pattern, hf) || matches_within(pattern, module.own);
  });
}

/// Whether a module that was chosen for an adapter trains whole instead, if the settings say so. A
/// word table with two uses may train whole through the other one, or not though its use is named.
bool is_left_to_whole(const AdapterSettings& settings, const LinearModule& module,
                      const std::vector<WholeParam>& whole, config::Violations& violations,
                      std::string_view path) {
  const bool named = trains_whole(settings, module);
  const bool trains = std::ranges::find(whole, module.values, &WholeParam::name) != whole.end();
  if (module.experts == 0 && is_word_table(module) && named != trains) {
    const std::string key = config::join(path, "modules_to_save");
    violations.add(config::join(path, "target_modules"),
                   fmt::format("{} chooses {}, but {}", config::join(path, "target_modules"),
                               module.hf,
                               trains ? fmt::format("{} trains its weight, that of {}, whole", key,
                                                    module_of_tensor(module.values))
                                      : fmt::format("it is in {}, which cannot train its weight, "
                                                    "that of {}",
                                                    key, module_of_tensor(module.values))),
                   fmt::format("{}=[]", key));
  }
  return named || (is_word_table(module) && trains);
}

/// As in PEFT, "down_proj" is the name of linear layers alone, "experts.down_proj" of experts.
bool chooses(const std::string& target, const LinearModule& module) {
  if (target == kAllLinear) return module.experts == 0 && module.use == nn::AdaptedUse::kLinear;
  return (module.experts == 0 || target.find('.') != std::string::npos) && matches(target, module);
}

/// "q_proj", "experts.down_proj": the ends of the modules' names, by which they can be chosen; the
/// word tables at the end.
std::vector<std::string> short_names(std::vector<LinearModule> modules) {
  std::ranges::stable_sort(modules, {}, is_word_table);
  std::vector<std::string> names;
  for (const LinearModule& module : modules) {
    const std::string last = last_of(module.hf);
    const std::string name =
        module.experts == 0
            ? last
            : last_of(module.hf.substr(0, module.hf.size() - last.size() - 1)) + "." + last;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

/// The value behind "NAME=" of the entry that matches; none if none does.
std::optional<double> of_pattern(const std::vector<std::string>& entries,
                                 const LinearModule& module) {
  for (const std::string& entry : entries) {
    const size_t equals = entry.rfind('=');
    if (equals != std::string::npos && matches(entry.substr(0, equals), module))
      return std::strtod(entry.c_str() + equals + 1, nullptr);
  }
  return std::nullopt;
}

void check_patterns(const std::vector<std::string>& entries, const std::string& key, bool integers,
                    const std::vector<LinearModule>& modules, config::Violations& violations) {
  const std::vector<std::string> names = short_names(modules);
  const std::string example = names.empty() ? "q_proj" : names.front();
  for (const std::string& entry : entries) {
    const size_t equals = entry.rfind('=');
    double value = 0;
    const char* const end = entry.data() + entry.size();
    const bool number = equals != std::string::npos &&
                        std::from_chars(entry.data() + equals + 1, end, value).ptr == end;
    if (!number || !(value > 0) || value > 1e6 || (integers && value != std::floor(value))) {
      violations.add(key,
                     fmt::format("{} contains \"{}\", which is not NAME={}", key, entry,
                                 integers ? "RANK" : "ALPHA"),
                     fmt::format("{}=[\"{}=16\"]", key, example));
    } else if (std::ranges::none_of(modules, [&](const LinearModule& m) {
                 return matches(entry.substr(0, equals), m);
               })) {
      violations.add(key,
                     fmt::format("{} contains \"{}\", which matches no module of the model that "
                                 "takes adapters; they are {}",
                                 key, entry, fmt::join(names, ", ")),
                     fmt::format("{}=[]", key));
    }
  }
  // PEFT takes the first that matches, in the order of its files, whose keys it sorts.
  const auto name_of = [](const std::string& entry) { return entry.substr(0, entry.rfind('=')); };
  for (const LinearModule& module : modules) {
    const std::string* first = nullptr; // and the one that would come first
    const std::string* least = nullptr;
    for (const std::string& entry : entries) {
      if (!matches(name_of(entry), module)) continue;
      if (first == nullptr) first = least = &entry;
      if (&entry != first && name_of(entry) <= name_of(*least)) least = &entry;
    }
    if (least == first) continue;
    std::vector<std::string> sorted = entries;
    std::ranges::stable_sort(sorted, {}, name_of);
    const auto same = [&](const auto& a, const auto& b) { return name_of(a) == name_of(b); };
    sorted.erase(std::unique(sorted.begin(), sorted.end(), same), sorted.end());
    for (std::string& entry : sorted) entry = fmt::format("\"{}\"", entry);
    violations.add(key,
                   fmt::format("{} contains \"{}\" and \"{}\", which both match {}; PEFT, which "
                               "sorts them, would take the second",
                               key, *first, *least, module.hf),
                   fmt::format("{}=[{}]", key, fmt::join(sorted, ",")));
    return;
  }
}

} // namespace

std::string last_of(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

bool matches_module(const std::string& pattern, const std::string& name) {
  return matches_pattern(pattern, name) || matches_pattern("*." + pattern, name);
}

bool matches_within(const std::string& pattern, const std::string& name) {
  if (matches_module(pattern, name)) return true;
  const size_t dot = name.rfind('.');
  return dot != std::string::npos && matches_within(pattern, name.substr(0, dot));
}

namespace {

/// An output layer that is the embedding's table, under the name that it would have alone.
void add_tied_output(const models::ModelConfig& config, const std::string& family,
                     const std::map<std::string, AdaptableWeight>& weights,
                     std::vector<LinearModule>& modules) {
  const auto output = weights.find(models::kOutputWeight);
  if (output == weights.end() || output->second.values == models::kOutputWeight) return;
  models::ModelConfig untied = config;
  untied.untie_embeddings_and_output_weights = true;
  for (const WeightMapEntry& entry : weight_map({family, untied}, HfNames::kParameters)) {
    if (entry.param != models::kOutputWeight) continue;
    modules.push_back(module_of(output->first, output->second, 0, entry.shape[0]));
    modules.back().hf = without_weight(entry.hf);
  }
}

} // namespace

std::vector<LinearModule> linear_modules(const models::ModelConfig& config,
                                         const std::string& family) {
  const std::map<std::string, AdaptableWeight> weights = adaptable_weights(config);
  std::vector<LinearModule> modules;
  std::optional<std::string> found;
  try {
    found = make_hf_config(config, family).family;
  } catch (const ConfigError&) { // then under our names alone
  }
  if (found) {
    const auto add = [&](const WeightMapEntry& entry, const std::string& hf) {
      const auto weight = weights.find(entry.param);
      if (weight == weights.end()) return;
      const auto dim = static_cast<size_t>(weight->second.spec.stacked_dims);
      LinearModule module =
          module_of(entry.param, weight->second, entry.origin[dim], entry.shape[dim]);
      module.hf = hf;
      module.alternating = entry.alternating;
      modules.push_back(std::move(module));
    };
    for (const WeightMapEntry& entry : weight_map({*found, config}, HfNames::kParameters)) {
      if (entry.shape.size() == 3)
        add(entry, entry.hf);
      else if (entry.hf.ends_with(kWeight))
        add(entry, without_weight(entry.hf));
    }
    add_tied_output(config, *found, weights, modules);
  } else {
    for (const auto& [name, weight] : weights) {
      const nn::ShardSpec& spec = weight.spec;
      int64_t begin = 0;
      for (const nn::FusedPart& part : spec.parts) {
        modules.push_back(module_of(name, weight, begin, part.pieces * part.piece_size));
        begin += modules.back().rows;
      }
      if (spec.parts.empty())
        modules.push_back(
            module_of(name, weight, 0, spec.shape[static_cast<size_t>(spec.stacked_dims)]));
    }
  }
  std::ranges::sort(modules, {}, [](const LinearModule& m) {
    return std::pair(std::string_view(m.weight), m.first_row);
  });
  return modules;
}

std::vector<AdaptedModule> adapted_modules(const std::vector<LinearModule>& modules,
                                           const AdapterSettings& settings,
                                           const std::vector<WholeParam>& whole,
                                           config::Violations& violations, std::string_view path) {
  const std::string key = config::join(path, "target_modules");
  const std::vector<std::string> names = short_names(modules);
  for (const std::string& pattern : settings.target_modules) {
    if (std::ranges::any_of(modules, [&](const auto& m) { return chooses(pattern, m); })) continue;
    const std::string near = nearest(pattern, names);
    violations.add(key,
                   fmt::format("{} contains \"{}\", which matches no module of the model that "
                               "takes adapters; they are {}",
                               key, pattern, fmt::join(names, ", ")),
                   fmt::format("{}=[{}]", key, near.empty() ? kAllLinear : near));
  }
  if (settings.target_modules.empty())
    violations.add(key, fmt::format("{}=[] chooses no module", key),
                   fmt::format("{}=[{}]", key, kAllLinear));
  check_patterns(settings.rank_pattern, config::join(path, "rank_pattern"), true, modules,
                 violations);
  check_patterns(settings.alpha_pattern, config::join(path, "alpha_pattern"), false, modules,
                 violations);
  std::vector<AdaptedModule> adapted;
  std::map<std::string, int64_t> ranks; // of the weight so far
  for (const LinearModule& module : modules) {
    if (std::ranges::none_of(settings.target_modules,
                             [&](const std::string& p) { return chooses(p, module); }) ||
        is_left_to_whole(settings, module, whole, violations, path))
      continue;
    AdaptedModule one{.module = module};
    one.rank = static_cast<int64_t>(
        of_pattern(settings.rank_pattern, module).value_or(static_cast<double>(settings.r)));
    one.alpha = of_pattern(settings.alpha_pattern, module).value_or(settings.alpha);
    const auto rank = static_cast<double>(one.rank);
    one.scale = one.alpha / (settings.use_rslora ? std::sqrt(rank) : rank);
    one.first = ranks[module.weight];
    ranks[module.weight] += one.rank;
    adapted.push_back(std::move(one));
  }
  if (adapted.empty() && violations.empty())
    violations.add(config::join(path, "modules_to_save"),
                   fmt::format("{} contains all that {} chooses, so nothing gets an adapter",
                               config::join(path, "modules_to_save"), key),
                   fmt::format("{}=[]", config::join(path, "modules_to_save")));
  return adapted;
}

nn::AdapterPlan adapter_plan(const std::vector<AdaptedModule>& modules,
                             const AdapterSettings& settings,
                             const std::vector<WholeParam>& whole) {
  nn::AdapterPlan plan{.dropout = settings.dropout,
                       .dora = settings.type == AdapterType::kDora,
                       .b_lr_scale = settings.lora_plus_ratio};
  for (const AdaptedModule& one : modules)
    plan.weights[one.module.weight].push_back({.name = one.module.part,
                                               .first = one.module.first,
                                               .count = one.module.count,
                                               .rank = one.rank,
                                               .scale = one.scale});
  for (const WholeParam& param : whole) plan.whole.insert(param.name);
  return plan;
}

} // namespace pentatron::checkpoint
