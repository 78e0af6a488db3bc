#include "pentatron/trainer/memory_changes.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <fmt/format.h>

#include "pentatron/base/free_disk.h"
#include "pentatron/config/config.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

/// A setting, and what it costs relative to the others.
struct Alternative {
  int cost = 0;
  std::string keys; ///< empty: as it is
};
/// Of which one is taken.
using Alternatives = std::vector<Alternative>;

/// With which all layers are recomputed in groups of so many; empty where other keys do.
std::string groups_of_layers(const TrainConfig& train, int64_t group) {
  const std::string size = fmt::format("train.recompute_num_layers={}", group);
  if (train.recompute < Recompute::kFull) return group > 1 ? "train.recompute=full " + size : "";
  const bool block = train.recompute_method == RecomputeMethod::kBlock;
  if (train.recompute_num_layers == group) return block ? "train.recompute_method=uniform" : "";
  return block ? "train.recompute_method=uniform " + size : size;
}

/// In order of what they cost: nothing; parts of the forward pass again; communication; the whole
/// forward pass again; the bandwidth of a disk, or of the way to the host.
std::vector<Alternatives> settings_of_memory_alone(const Config& config, int64_t replicas,
                                                   int64_t group, bool may_offload) {
  const Alternative as_it_is;
  std::vector<Alternatives> all;
  if (config.dtype == Precision::kBf16 && !config.optimizer.store_param_remainders)
    all.push_back({as_it_is, {1, "optimizer.store_param_remainders=true"}});
  Alternatives recompute = {as_it_is};
  if (config.train.recompute < Recompute::kSelective)
    recompute.push_back({2, "train.recompute=selective"});
  if (config.train.recompute < Recompute::kFull) recompute.push_back({6, "train.recompute=full"});
  if (const std::string keys = groups_of_layers(config.train, group); !keys.empty())
    recompute.push_back({6, keys});
  all.push_back(recompute);
  Alternatives zero = {as_it_is};
  for (int64_t stage = config.ddp.zero_stage + 1; replicas > 1 && stage <= 3; ++stage)
    zero.push_back({static_cast<int>(2 + stage), fmt::format("ddp.zero_stage={}", stage)});
  all.push_back(zero);
  if (may_offload && !config.offload.optimizer)
    all.push_back({as_it_is, {7, "offload.optimizer=true"}});
  if (may_offload && !config.offload.activations)
    all.push_back({as_it_is, {8, "offload.activations=true"}});
  return all;
}

std::string lean_lion(const Config& config) {
  constexpr double kSlower = 3; // docs/optimizers.md
  const optim::OptimizerConfig& o = config.optimizer;
  return fmt::format("optimizer.optimizer=lion optimizer.lr={:.3g} optimizer.min_lr={:.3g} "
                     "optimizer.weight_decay={:.3g}",
                     o.lr / kSlower, o.min_lr / kSlower, o.weight_decay * kSlower);
}

MemoryChange keys_of(std::string_view text) {
  MemoryChange keys;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    keys.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return keys;
}

} // namespace

OffloadFolder offload_folder(const Config& config) {
  const std::string path = config.offload.dir.empty() ? "/var/tmp" : config.offload.dir;
  struct statfs disk {};
  const bool in_memory = ::statfs(path.c_str(), &disk) == 0 &&
                         (disk.f_type == TMPFS_MAGIC || disk.f_type == RAMFS_MAGIC);
  const bool read_only = ::access(path.c_str(), F_OK) == 0 && ::access(path.c_str(), W_OK) != 0;
  const std::optional<double> free = free_disk(path);
  return in_memory || read_only || !free ? OffloadFolder{}
                                         : OffloadFolder{.path = path, .free_bytes = *free};
}

std::vector<MemoryChange> changes_of_memory_alone(const Config& config, int64_t replicas,
                                                  int64_t group, const OffloadFolder& folder) {
  const bool cpu = on_cpu(config.device);
  struct Combination {
    int cost = 0;
    MemoryChange keys;
  };
  std::vector<Combination> all = {{}};
  for (const Alternatives& alternatives :
       settings_of_memory_alone(config, replicas, group, !cpu || !folder.path.empty())) {
    std::vector<Combination> longer;
    for (const Combination& one : all)
      for (const Alternative& setting : alternatives) {
        longer.push_back({one.cost + setting.cost, one.keys});
        if (!setting.keys.empty()) longer.back().keys.push_back(setting.keys);
      }
    all = std::move(longer);
  }
  std::ranges::stable_sort(
      all, {}, [](const Combination& one) { return std::pair(one.keys.size(), one.cost); });
  std::vector<MemoryChange> result;
  for (const Combination& one : all) {
    MemoryChange change;
    for (const std::string& setting : one.keys)
      for (std::string& key : keys_of(setting)) change.push_back(std::move(key));
    const bool away = std::ranges::any_of(
        change, [](const std::string& key) { return key.starts_with("offload."); });
    if (away && cpu && config.offload.dir.empty()) change.push_back("offload.dir=" + folder.path);
    if (!change.empty()) result.push_back(std::move(change));
  }
  return result;
}

std::vector<MemoryChange> leaner_optimizers(const Config& config) {
  using optim::OptimizerKind;
  using optim::StateDtype;
  const optim::OptimizerConfig& o = config.optimizer;
  const bool adam = o.optimizer == OptimizerKind::kAdam;
  std::vector<std::string> all;
  const std::string means = "optimizer.exp_avg_dtype=", squares = " optimizer.exp_avg_sq_dtype=";
  // Without squares a smaller type of the means is all that there is.
  if (o.exp_avg_dtype == StateDtype::kFp32) all.push_back(means + "bf16");
  if (adam && o.exp_avg_sq_dtype == StateDtype::kFp32)
    all.push_back(means + "bf16" + squares + "bf16");
  if (o.exp_avg_dtype != StateDtype::kFp8)
    all.push_back(means + "fp8" + (adam ? squares + "fp8" : ""));
  // A run that resumes keeps its optimizer.
  const bool resumes = !starts_fresh(config.checkpoint) && !foreign_model(config.checkpoint) &&
                       config.checkpoint.load_optimizer;
  if (adam && !resumes) {
    all.push_back(lean_lion(config));
    all.push_back(lean_lion(config) + " optimizer.exp_avg_dtype=fp8");
    // So that the learning rate means the same as before.
    all.emplace_back("optimizer.optimizer=adafactor optimizer.adafactor_scale_parameter=false");
  }
  std::vector<MemoryChange> changes;
  for (const std::string& keys : all) changes.push_back(keys_of(keys));
  return changes;
}

Config with_change(Config config, const MemoryChange& change) {
  config::Violations violations;
  for (const std::string& key : change) config::apply_override(config, key, violations);
  violations.throw_if_any();
  return config;
}

} // namespace pentatron::trainer
