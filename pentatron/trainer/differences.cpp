#include "pentatron/trainer/differences.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/text.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/config/config.h"

namespace pentatron::trainer {

namespace {

/// ./runs/a/ as runs/a, of each path of a list.
std::vector<std::string> normal_paths(std::string_view value) {
  if (value.size() > 1 && value.front() == '"' && value.back() == '"')
    value = value.substr(1, value.size() - 2);
  std::vector<std::string> paths;
  for (const std::string_view one : split(value, ',')) {
    std::string path = std::filesystem::path(trim(one)).lexically_normal().string();
    if (path.size() > 1 && path.ends_with('/')) path.pop_back();
    paths.push_back(std::move(path));
  }
  return paths;
}

/// The keys that differ in more than the spelling of a path.
std::vector<config::Difference> differing(const Config& one, const Config& other) {
  std::vector<config::Difference> all = config::diff(one, other);
  std::erase_if(all, [](const config::Difference& d) {
    return normal_paths(d.before) == normal_paths(d.after);
  });
  return all;
}

std::string texts_of(const std::vector<config::Difference>& all,
                     const std::set<config::OnResume>& meanings) {
  std::vector<std::string> texts;
  for (const config::Difference& d : all)
    if (meanings.contains(d.on_resume))
      texts.push_back(fmt::format("{}={} instead of {}", d.path, d.before, d.after));
  return fmt::format("{}", fmt::join(texts, ", "));
}

} // namespace

std::string differences(const Config& one, const Config& other,
                        const std::set<config::OnResume>& meanings) {
  return texts_of(differing(one, other), meanings);
}

std::string assignments(const Config& one, const Config& other,
                        const std::set<config::OnResume>& meanings) {
  std::vector<std::string> texts;
  for (const config::Difference& d : differing(one, other))
    if (meanings.contains(d.on_resume)) texts.push_back(fmt::format("{}={}", d.path, d.before));
  return fmt::format("{}", fmt::join(texts, " and "));
}

void check_saved(const Config& saved, const Config& config, bool has_training_state,
                 const std::string& folder) {
  std::set<config::OnResume> fixed = {config::OnResume::kModel};
  if (has_training_state) fixed.insert(config::OnResume::kState);
  const std::string text = differences(saved, config, fixed);
  if (text.empty()) return;
  if (config.checkpoint.finetune) {
    Config weights = saved;
    weights.peft = config.peft; // adapters that begin anew change nothing in the weights
    if (!saved.peft.on() && differences(weights, config, fixed).empty()) return;
    log::shared_warning("the weights of {} were trained with {}", folder, text);
    return;
  }
  const std::string theirs = assignments(saved, config, fixed);
  raise<ConfigError>("{} was trained with {}, but this run has {}\n  try: {}{}", folder, theirs,
                     assignments(config, saved, fixed), theirs,
                     differences(saved, config, {config::OnResume::kModel}).empty()
                         ? ", or checkpoint.finetune=true to start a new run from its weights"
                         : "");
}

void tell_other_model(const models::ModelConfig& saved, const Config& config,
                      const std::string& where) {
  Config theirs = config;
  theirs.model = saved;
  std::vector<std::string> texts;
  for (const config::Difference& d : config::diff(theirs, config))
    if (d.on_resume == config::OnResume::kModel && !d.of_task)
      texts.push_back(fmt::format("{}={} instead of {}", d.path, d.before, d.after));
  if (!texts.empty())
    log::shared_warning("the weights of {} were trained with {}",
                        where.starts_with("hf:") ? where.substr(3) : where, fmt::join(texts, ", "));
}

Config equal_config(Config config, const comm::Group& world) {
  const std::vector<std::string> all = comm::gather_text(config::to_yaml(config), world);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    using config::OnResume;
    Config theirs, first;
    config::Violations ignored;
    config::apply_yaml(theirs, all[rank], "", ignored);
    config::apply_yaml(first, all[0], "", ignored);
    raise<CommError>(
        "the configuration of rank {} differs from rank 0: {}\n  try: the same file, "
        "keys and program on all ranks",
        rank,
        texts_of(config::diff(theirs, first), {OnResume::kTold, OnResume::kModel, OnResume::kState,
                                               OnResume::kData, OnResume::kIgnored}));
  }
  return config;
}

} // namespace pentatron::trainer
