#include "pentatron/trainer/validate.h"

#include <algorithm>

namespace pentatron::trainer {

std::optional<Evaluation> validate(Stepper& stepper, const models::ModelSpec& spec,
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

} // namespace pentatron::trainer
