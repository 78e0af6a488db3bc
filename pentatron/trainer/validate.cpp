#include "pentatron/trainer/validate.h"

#include <algorithm>

#include "pentatron/base/log.h"
#include "pentatron/base/planted_bug.h"

namespace pentatron::trainer {

namespace {

std::optional<Evaluation> validate_set(Stepper& stepper, const models::ModelSpec& spec,
                                       const Config& config,
                                       const std::shared_ptr<const data::Dataset>& dataset,
                                       data::LoaderOptions loading) {
  loading.global_batch_size_at = {};
  loading.pad_last_batch = true; // validation data may be less than a global batch
  data::Loader batches(dataset, loading);
  const int64_t samples = dataset->samples_per_epoch();
  int64_t steps = std::max<int64_t>(1, samples / loading.global_batch_size);
  if (config.dataset.full_validation) {
    const int64_t all = dataset->size().value_or(samples);
    steps = (all + loading.global_batch_size - 1) / loading.global_batch_size;
  } else {
    steps = std::min(config.train.eval_iters, steps);
  }
  EvaluationSums total;
  for (int64_t i = 0; i < steps; ++i) total += stepper.evaluate(batches.next());
  return evaluated(spec, total, config.model.num_labels);
}

} // namespace

std::optional<Evaluation> validate(Stepper& stepper, const models::ModelSpec& spec,
                                   const Config& config, const data::Datasets& datasets,
                                   const data::LoaderOptions& loading, bool main_rank) {
  if (datasets.validation == nullptr) return std::nullopt;
  if (datasets.validation_sets.empty()) {
    std::optional<Evaluation> result =
        validate_set(stepper, spec, config, datasets.validation, loading);
    if (!result)
      log::shared_warning("the validation samples have no targets, so there is no validation loss");
    return result;
  }
  std::vector<Evaluation> parts;
  for (const data::NamedDataset& set : datasets.validation_sets) {
    const std::optional<Evaluation> part =
        validate_set(stepper, spec, config, set.dataset, loading);
    if (!part) {
      log::shared_warning(
          "the validation samples of {} have no targets, so there is no validation loss", set.name);
      continue;
    }
    if (main_rank && part->loss) log::info("validation loss of {}: {:.6E}", set.name, *part->loss);
    parts.push_back(*part);
  }
  return parts.empty() ? std::nullopt : std::optional(mean_of(parts));
}

void with_eval_weights(const Config& config, optim::Optimizer& optimizer,
                       parallel::DataParallel& store, const std::function<void()>& look) {
  const auto swap = [&] {
    if (config.train.eval_weights != optim::WeightsKind::kEma) return;
    store.wait_values(); // of shards that are about to change
    optimizer.swap_average();
    if (!planted("average_of_own_parts_alone")) store.publish_values();
  };
  swap();
  look();
  swap();
}

} // namespace pentatron::trainer
