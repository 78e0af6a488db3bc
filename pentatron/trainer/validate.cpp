#include "pentatron/trainer/validate.h"

#include <algorithm>

#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/planted_bug.h"

namespace pentatron::trainer {

namespace {

/// `of_set`: " of NAME" of one of several sets. `all`: no other samples are there to be read.
void tell_missing_targets(const models::ModelSpec& spec, const CheckpointConfig& c,
                          const EvaluationSums& sums, int64_t samples, bool all,
                          const std::string& of_set) {
  std::vector<std::string> missing;
  for (size_t i = 0; i < sums.terms.size(); ++i)
    if (sums.terms[i].targets == 0 && spec.losses[i].evaluated)
      missing.push_back(spec.losses[i].name);
  if (missing.empty()) return;
  log::shared_warning(
      "the {}{} that the validation reads {} no target{}, so there is no validation loss{}\n  try: "
      "{}",
      counted(samples, "sample"), of_set, samples == 1 ? "has" : "have",
      spec.num_evaluated() > 1 ? fmt::format(" of {}", fmt::join(missing, " and ")) : "",
      c.keep_best > 0 && c.keep_best_metric != kTrainingLoss
          ? fmt::format(" and checkpoint.keep_best={} may have nothing to compare", c.keep_best)
          : "",
      all ? "other validation samples" : "dataset.full_validation=true");
}

std::optional<Evaluation> validate_set(Stepper& stepper, const models::ModelSpec& spec,
                                       const Config& config,
                                       const std::shared_ptr<const data::Dataset>& dataset,
                                       data::LoaderOptions loading,
                                       const std::string& of_set = {}) {
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
  // The last batch may be filled up.
  const int64_t read = std::min(steps * loading.global_batch_size, samples);
  tell_missing_targets(spec, config.checkpoint, total, read, read == samples, of_set);
  return evaluated(spec, total, config.model.num_labels);
}

} // namespace

std::optional<Evaluation> validate(Stepper& stepper, const models::ModelSpec& spec,
                                   const Config& config, const data::Datasets& datasets,
                                   const data::LoaderOptions& loading, bool main_rank) {
  if (datasets.validation == nullptr) return std::nullopt;
  if (datasets.validation_sets.empty())
    return validate_set(stepper, spec, config, datasets.validation, loading);
  std::vector<Evaluation> parts;
  for (const data::NamedDataset& set : datasets.validation_sets) {
    const std::optional<Evaluation> part =
        validate_set(stepper, spec, config, set.dataset, loading, " of " + set.name);
    if (!part) continue;
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
