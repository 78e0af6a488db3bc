#include "pentatron/trainer/offload.h"

#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/free_disk.h"
#include "pentatron/trainer/recompute.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

/// Whether a rule keeps anything of a weight that could leave.
bool keeps_vectors(const Config& config) {
  const nn::ShardSpec matrix{.name = "", .shape = {2, 2}};
  return optim::vector_bytes(config.optimizer, matrix, scalar_type(config.dtype)) > 0;
}

} // namespace

void check_offload(const Config& config, config::Violations& violations) {
  const OffloadConfig& offload = config.offload;
  const auto idle = [&](const char* key, const std::string& value, const char* without,
                        const char* remedy) {
    violations.add(key, fmt::format("{}={} has no effect without {}", key, value, without), remedy);
  };
  if (!offload.activations && offload.num_layers > 0)
    idle("offload.num_layers", std::to_string(offload.num_layers), "offload.activations=true",
         "offload.num_layers=0");
  if (!offload.optimizer && offload.optimizer_fraction != OffloadConfig().optimizer_fraction)
    idle("offload.optimizer_fraction", fmt::format("{}", offload.optimizer_fraction),
         "offload.optimizer=true", "offload.optimizer_fraction=1");
  if (offload.optimizer && !keeps_vectors(config))
    violations.add("offload.optimizer",
                   fmt::format("offload.optimizer=true has no effect: optimizer.optimizer={} "
                               "stores no state for each element of a weight",
                               config::to_string(config.optimizer.optimizer)),
                   config.optimizer.optimizer == optim::OptimizerKind::kSgd
                       ? "optimizer.sgd_momentum=0.9"
                       : "offload.optimizer=false");
  if (!offload.activations && !offload.optimizer) {
    if (!offload.dir.empty())
      idle("offload.dir", offload.dir, "offload.activations=true or offload.optimizer=true",
           "offload.dir=\"\"");
    return;
  }
  const bool cpu = on_cpu(config.device);
  if (cpu && offload.dir.empty())
    violations.add("offload.dir",
                   fmt::format("{}=true needs a folder for the files of ranks on CPUs",
                               offload.activations ? "offload.activations" : "offload.optimizer"),
                   "offload.dir=/var/tmp");
  if (!cpu && !offload.dir.empty())
    violations.add("offload.dir",
                   fmt::format("offload.dir={} has no effect on GPU ranks, which move activations "
                               "and optimizer state to host memory",
                               offload.dir),
                   "offload.dir=\"\"");
}

void check_offloaded_layers(const Config& config, config::Violations& violations) {
  if (!config.offload.activations || config.offload.num_layers > 0 ||
      most_layers_of_a_stage(config) > 1)
    return;
  violations.add("offload.activations",
                 "offload.activations=true has no effect with offload.num_layers=0: each pipeline "
                 "stage has one layer, and the activations of its last layer are not moved",
                 "offload.num_layers=1");
}

std::shared_ptr<nn::Offload> activation_offload(const OffloadConfig& config, at::Device device) {
  if (!config.activations) return nullptr;
  return device.is_cpu() ? nn::offload_to_file(config.dir) : nn::offload_to_host();
}

optim::AwayState optimizer_offload(const OffloadConfig& config, at::Device device) {
  if (!config.optimizer) return {};
  return {.store = device.is_cpu() ? nn::state_store_in_file(config.dir)
                                   : nn::state_store_in_host(device),
          .fraction = config.optimizer_fraction};
}

std::string describe_disk(const Config& config, const MemoryPlan& plan) {
  if (plan.disk == 0 || !on_cpu(config.device)) return "";
  const std::optional<double> free = free_disk(config.offload.dir);
  return fmt::format("disk         about {} in offload.dir={}{}", format_bytes(plan.disk),
                     config.offload.dir,
                     free ? fmt::format(", which has {} free", format_bytes(*free)) : "");
}

void require_disk(const Config& config, const MemoryPlan& plan) {
  if (plan.disk == 0 || !on_cpu(config.device)) return;
  const std::optional<double> free = free_disk(config.offload.dir);
  if (!free || *free >= plan.disk) return;
  const double fraction = config.offload.optimizer_fraction * 0.9 * *free / plan.disk;
  raise<ConfigError>("offload.dir={} has {} free, and offload.optimizer=true needs about {} there\n"
                     "  try: offload.dir=FOLDER on a larger disk{}",
                     config.offload.dir, format_bytes(*free), format_bytes(plan.disk),
                     fraction >= 0.01 ? fmt::format(", or offload.optimizer_fraction={:.2f}",
                                                    std::floor(fraction * 100) / 100)
                                      : "");
}

} // namespace pentatron::trainer
