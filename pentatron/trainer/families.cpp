#include "pentatron/trainer/families.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "pentatron/base/format.h"
#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"
#include "pentatron/config/config.h"
#include "pentatron/models/param_specs.h"
#include "pentatron/optim/param_group.h"
#include "pentatron/optim/rule.h"
#include "pentatron/trainer/precision.h"

namespace pentatron::trainer {

namespace {

/// train.freeze=["a.*", "b"]
std::string assignment_of(const std::vector<std::string>& freeze) {
  std::string text;
  for (const std::string& pattern : freeze)
    text += fmt::format("{}\"{}\"", text.empty() ? "" : ", ", pattern);
  return fmt::format("train.freeze=[{}]", text);
}

/// What one means that matches nothing: all below it, or a pattern of the model that resembles it
/// and has as many parts, so that it freezes no more than was meant; empty if there is none.
std::string similar_pattern(const std::string& pattern, const models::ParamSpecs& specs) {
  if (std::ranges::any_of(
          specs, [&](const auto& one) { return matches_pattern(pattern + ".*", one.first); }))
    return pattern + ".*";
  std::set<std::string> known;
  for (const auto& [name, spec] : specs) {
    known.insert(name);
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      known.insert(name.substr(0, dot) + ".*");
  }
  const auto parts = std::ranges::count(pattern, '.');
  std::erase_if(known, [&](const std::string& k) { return std::ranges::count(k, '.') != parts; });
  return nearest(pattern, std::vector<std::string>(known.begin(), known.end()));
}

/// "layers.0.attention.qkv.weight to output.weight".
std::string range_of(const models::ParamSpecs& specs) {
  return fmt::format("{} to {}", specs.begin()->first, specs.rbegin()->first);
}

} // namespace

bool is_frozen(const std::vector<std::string>& freeze, const std::string& name) {
  return std::ranges::any_of(freeze,
                             [&](const std::string& p) { return matches_pattern(p, name); });
}

bool trains(const Config& config, const nn::Param& param) {
  if (config.peft.on()) return param.adapter || param.with_adapters;
  return !is_frozen(config.train.freeze, param.name());
}

bool is_int8(const Config& config, const nn::Param& param) {
  if (!config.peft.on() || config.peft.base_dtype != checkpoint::BaseDtype::kInt8 ||
      trains(config, param))
    return false;
  const bool experts = param.group == nn::ReductionGroup::kExpert && param.spec().shape.size() == 3;
  return param.linear || experts;
}

void check_freeze(const TrainConfig& train, const models::ModelConfig& model,
                  config::Violations& violations) {
  if (train.freeze.empty()) return;
  const models::ParamSpecs specs = models::param_specs(model);
  const models::ParamSpecs tensors = models::tensor_specs(model);
  const auto matched = [&](const std::string& pattern) {
    return std::ranges::any_of(
        tensors, [&](const auto& one) { return matches_pattern(pattern, one.first); });
  };
  std::vector<std::string> works;
  for (const std::string& pattern : train.freeze)
    if (matched(pattern)) works.push_back(pattern);
  for (const std::string& pattern : train.freeze) {
    if (matched(pattern)) continue;
    std::vector<std::string> repaired = works;
    if (pattern.find(',') != std::string::npos) { // "a,b", which YAML takes for one text
      std::istringstream list(pattern);
      for (std::string one; std::getline(list, one, ',');)
        if (matched(one)) repaired.push_back(one);
    } else if (const std::string similar = similar_pattern(pattern, specs); !similar.empty()) {
      repaired.push_back(similar);
    }
    violations.add("train.freeze",
                   fmt::format("train.freeze contains \"{}\", which matches no parameter of the "
                               "model; its parameters are {}",
                               pattern, range_of(specs)),
                   repaired.empty() ? "remove train.freeze" : assignment_of(repaired));
  }
  const auto frozen = [&](const auto& one) { return is_frozen(train.freeze, one.first); };
  if (std::ranges::all_of(specs, frozen))
    violations.add(
        "train.freeze",
        fmt::format("{} freezes all {} parameters of the model, so there is nothing to train",
                    assignment_of(train.freeze), specs.size()),
        "train.freeze=[]");
}

void check_param_group_patterns(const std::vector<std::string>& groups,
                                const models::ModelConfig& model, config::Violations& violations) {
  if (groups.empty()) return;
  const models::ParamSpecs specs = models::param_specs(model);
  for (const std::string& text : groups) {
    const std::optional<optim::ParamGroup> group = optim::parse_param_group(text);
    const auto matched = [&](const auto& one) {
      return matches_pattern(group->pattern, one.first);
    };
    if (!group || std::ranges::any_of(specs, matched)) continue;
    const std::string similar = similar_pattern(group->pattern, specs);
    violations.add(
        "optimizer.param_groups",
        fmt::format(
            "optimizer.param_groups contains \"{}\", and \"{}\" matches no parameter of the "
            "model; its parameters are {}",
            text, group->pattern, range_of(specs)),
        similar.empty()
            ? "remove optimizer.param_groups"
            : fmt::format("optimizer.param_groups=[\"{}{}\"]", similar,
                          text.substr(text.find(group->pattern) + group->pattern.size())));
  }
}

std::string describe_updates(const std::vector<nn::Shard>& shards) {
  int64_t elements = 0, parts = 0;
  for (const nn::Shard& shard : shards) {
    if (!shard.trainable()) continue;
    elements += shard.values.numel();
    ++parts;
  }
  return fmt::format("this rank updates {} in {}", counted(elements, "element"),
                     counted(parts, "part"));
}

void plan_families(nn::ParamList& params, const Config& config, at::Device device) {
  optim::plan_rules(params, config.optimizer);
  for (nn::Param& param : params) {
    param.trainable = trains(config, param);
    param.in_int8 = is_int8(config, param);
  }
  for (nn::Param& buffer : params.buffers()) buffer.trainable = trains(config, buffer);
  plan_precision(params, config, device);
}

} // namespace pentatron::trainer
