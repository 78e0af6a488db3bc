#include "pentatron/trainer/score_labels.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "pentatron/base/error.h"
#include "pentatron/base/progress.h"
#include "pentatron/data/batch.h"
#include "pentatron/data/dataset.h"
#include "pentatron/parallelize/load_model.h"
#include "pentatron/trainer/runtime.h"
#include "pentatron/trainer/step_inputs.h"

namespace pentatron::trainer {

namespace {

constexpr int64_t kBatch = 16;

int64_t length_of(const LabelScoring& options, const checkpoint::ModelFacts& facts) {
  // RoBERTa has fewer positions than its context says, and dynamic scaling allows more.
  const int64_t most = facts.config.longest_sequence().value_or(facts.context);
  if (options.context > most)
    raise<ConfigError>("--context {} is not between 1 and the model's context of {} tokens\n  try: "
                       "--context {}",
                       options.context, most, most);
  return options.context > 0 ? options.context : std::min(facts.context, most);
}

EvaluationSums evaluate(const parallelize::RankModel& model, const data::Batch& read,
                        at::Device device) {
  const models::ModelSpec& spec = model.model->spec();
  const nn::Microbatch batch = model_input(read, spec.streams, device);
  nn::StepState state;
  nn::WgradQueue wgrad;
  nn::ForwardContext ctx{
      .batch = &batch, .wanted = {.scores = true}, .wgrad = &wgrad, .state = &state};
  model.model->whole().forward({}, ctx, *model.store, nullptr);
  EvaluationSums sums;
  for (const models::LossTerm& term : spec.losses)
    sums.terms.push_back({.loss_sum = state.loss_sum(term.name),
                          .targets = read.num_targets.at(term.labels),
                          .hits = static_cast<double>(state.hit_count(term.name))});
  for (const auto& p : state.predictions[spec.losses.front().name])
    sums.predictions.push_back({p.predicted, p.label});
  return sums;
}

} // namespace

LabelScore score_labels(checkpoint::ModelSource& source,
                        const std::shared_ptr<const data::Tokenizer>& tokenizer,
                        const data::DatasetConfig& dataset, const LabelScoring& options) {
  const models::ModelConfig& config = source.config();
  const int64_t length = length_of(options, source.facts());
  const at::Device device = choose_device(options.device);
  const data::Datasets sets =
      data::open_datasets(dataset, {.sequence_length = length,
                                    .vocab_size = config.vocab_size,
                                    .fields = models::model_spec(config).fields,
                                    .tokenizer = tokenizer,
                                    .label_names = config.label_names});
  const parallelize::RankModel model =
      parallelize::load_model(source, {.config = config,
                                       .build = {.dtype = scalar_type(options.dtype)},
                                       .device = device,
                                       .max_sequence = length,
                                       .gradients = false});
  LabelScore score{.evaluation = {}, .samples = sets.validation->samples_per_epoch()};
  EvaluationSums sums;
  Progress progress("evaluating", score.samples);
  for (int64_t begin = 0; begin < score.samples; begin += kBatch) {
    progress.update(begin);
    std::vector<int64_t> samples(static_cast<size_t>(std::min(kBatch, score.samples - begin)));
    std::iota(samples.begin(), samples.end(), begin);
    sums += evaluate(model, data::make_batch(*sets.validation, samples), device);
  }
  score.evaluation = *evaluated(model.model->spec(), sums, config.num_labels);
  return score;
}

} // namespace pentatron::trainer
