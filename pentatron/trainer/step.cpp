#include "pentatron/trainer/step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/parallel/expert/balance.h"
#include "pentatron/parallel/pipeline/schedule/check.h"
#include "pentatron/parallel/pipeline/schedule/forward_only.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"
#include "pentatron/trainer/step_inputs.h"

namespace pentatron::trainer {

namespace {

/// Writes down a phase from its construction to its destruction.
class PhaseTimer {
 public:
  PhaseTimer(StepTimes* times, const char* name)
      : times_(times), name_(name), start_s_(monotonic_s()) {}
  ~PhaseTimer() {
    if (times_ != nullptr) times_->phases.push_back({name_, start_s_, monotonic_s()});
  }
  PhaseTimer(const PhaseTimer&) = delete;

 private:
  StepTimes* times_;
  const char* name_;
  double start_s_;
};

const nn::ExpertLoads kNoLoads;

/// The sign of a NaN means nothing, but is printed.
double plain(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

} // namespace

std::string skip_text(const StepResult& result, const StepOptions& options) {
  if (!result.too_large) return "its batch has no targets";
  return fmt::format("its gradient norm {:.4g} is larger than "
                     "optimizer.grad_norm_skip_threshold={:.4g}",
                     *result.grad_norm, options.grad_norm_skip_threshold);
}

bool losses_are_finite(const StepResult& result) {
  const auto fine = [](const std::optional<double>& loss) { return !loss || std::isfinite(*loss); };
  return fine(result.loss) && std::ranges::all_of(result.terms, fine);
}

std::string nonfinite_text(const StepResult& result) {
  std::vector<std::string> what;
  if (!losses_are_finite(result)) {
    const auto infinite = [](const auto& term) { return term && !std::isfinite(*term); };
    const auto term = std::ranges::find_if(result.terms, infinite);
    what.push_back(fmt::format("loss {:g}", infinite(result.loss) ? *result.loss : **term));
  }
  if (result.grad_norm && !std::isfinite(*result.grad_norm))
    what.push_back(fmt::format("gradient norm {:g}", *result.grad_norm));
  return fmt::format(
      "{} {} not finite{}{}", fmt::join(what, " and "), what.size() == 1 ? "is" : "are",
      result.first_nonfinite.empty() ? "" : ", first seen in ", result.first_nonfinite);
}

Stepper::Stepper(parallelize::TrainingModel& model, optim::Optimizer& optimizer,
                 comm::ParallelGroups groups, parallelize::PipelinePlan plan,
                 const QkClipOptions& clip)
    : model_(&model), optimizer_(&optimizer), groups_(std::move(groups)), plan_(std::move(plan)),
      runtime_(parallelize::chunks_of(*model.model), *model.store, model.places.channels,
               parallelize::boundaries_of(*model.model, model.places, model.device)),
      clip_(clip, model.model->config(), model.model->params()) {
  for (nn::Param& param : model.model->params())
    if (param.low_precision && param.low_precision->stochastic)
      param.low_precision->stochastic->rows = &gradient_rows_;
}

Stepper::Counts Stepper::global_counts(const data::StepData& data) const {
  std::vector<int64_t> own;
  const bool padding = groups_.world().size() > 1 && planted("padding_counted_as_target");
  for (const models::LossTerm& term : spec().losses) {
    own.push_back(data.num_targets.at(term.labels));
    for (const data::Batch& batch : data.microbatches)
      if (padding) own.back() += batch.stream(spec().streams.front()).real.empty() ? 0 : 1;
  }
  for (const std::string& stream : spec().streams) {
    const data::StreamTotals& t = data.totals.at(stream);
    own.insert(own.end(), {t.tokens, t.real_tokens, t.squared_lengths});
    const std::vector<int64_t> lengths = t.lengths.to_counts();
    own.insert(own.end(), lengths.begin(), lengths.end());
  }
  int64_t samples = 0;
  HeadRows rows;
  for (const data::Batch& batch : data.microbatches) {
    samples += std::ssize(batch.sample_ids);
    const HeadRows more = count_head_rows(batch, spec(), model_->model->context_group().size());
    rows.computed += more.computed;
    rows.real += more.real;
  }
  own.insert(own.end(), {rows.computed, rows.real, samples});
  // Context ranks have parts of the same samples, and count them whole.
  const bool wrong = groups_.lists("dp-cp") && planted("targets_counted_by_every_context_rank");
  const comm::Group& ranks = groups_.get(wrong ? "dp-cp" : "dp");
  const at::Tensor all = comm::all_reduce(at::tensor(own, at::kLong), comm::ReduceOp::kSum, ranks);
  const int64_t* sums = all.const_data_ptr<int64_t>();
  Counts counts;
  for (size_t i = 0; i < spec().losses.size(); ++i) counts.targets.push_back(*sums++);
  for (size_t i = 0; i < spec().streams.size(); ++i) {
    counts.totals.push_back({.tokens = sums[0],
                             .real_tokens = sums[1],
                             .squared_lengths = sums[2],
                             .lengths = DocumentLengths::from_counts(sums + 3)});
    sums += 3 + 3 * DocumentLengths::kNumClasses;
  }
  counts.head_rows = {.computed = sums[0], .real = sums[1]};
  counts.samples = sums[2];
  return counts;
}

const pipeline::Schedule& Stepper::schedule(Use use, size_t num_microbatches) {
  const auto [slot, fresh] = schedules_.try_emplace({use, num_microbatches});
  if (fresh) {
    const pipeline::Schedule made = plan_.make(static_cast<int>(num_microbatches));
    const pipeline::LowerOptions options{.prefetch = plan_.prefetch};
    if (use == Use::kTraining) {
      slot->second = pipeline::lower(made, options);
      pipeline::require_valid(slot->second);
    } else {
      slot->second = pipeline::lower(pipeline::forward_only(made), options);
    }
  }
  return slot->second;
}

std::vector<nn::Microbatch> Stepper::inputs(const data::StepData& data) const {
  const models::Model& model = *model_->model;
  std::vector<nn::Microbatch> inputs;
  for (const data::Batch& batch : data.microbatches) {
    inputs.push_back(model_input(batch, spec().streams, at::kCPU));
    if (groups_.pp().rank() > 0 && planted("padding_seen_on_later_stages"))
      for (nn::SequenceLayout& layout : inputs.back().layouts) layout.real.clear();
    cut_context(inputs.back(), batch, spec().streams, model.context_group());
    if (const parallel::TensorParallel& tp = model.tensor_parallel(); tp.sequence)
      for (nn::SequenceLayout& layout : inputs.back().layouts)
        layout.cut_outer(tp.rank(), tp.size());
    find_labelled_rows(inputs.back(), spec());
    inputs.back() = on_device(std::move(inputs.back()), model_->device);
  }
  return inputs;
}

bool Stepper::counts_here() const {
  return groups_.tp().rank() == 0 || planted("loss_counted_by_every_tensor_rank");
}

std::vector<at::Tensor> Stepper::own_losses(const nn::StepState& state) const {
  std::vector<at::Tensor> sums;
  const at::Tensor none = at::zeros({}, at::dtype(at::kDouble).device(model_->device));
  for (const models::LossTerm& term : spec().losses) {
    const auto found = state.loss_sums.find(term.name); // on the last stage only
    sums.push_back(counts_here() && found != state.loss_sums.end() ? found->second : none);
  }
  return sums;
}

std::map<std::string, double, std::less<>>
Stepper::loss_scales(const Counts& counts, const data::StepData& data, double loss_scale) const {
  std::map<std::string, double, std::less<>> scales;
  const bool several_ranks = groups_.world().size() > 1;
  for (size_t i = 0; i < spec().losses.size(); ++i) {
    const models::LossTerm& term = spec().losses[i];
    const size_t source = several_ranks && planted("denominator_of_another_term") ? 0 : i;
    const int64_t denominator =
        planted("mean_of_the_ranks_means") ? data.num_targets.at(term.labels) * groups_.dp().size()
        : i > 0 && planted("later_terms_counted_on_one_rank") ? data.num_targets.at(term.labels)
                                                              : counts.targets[source];
    scales[term.name] =
        denominator > 0 ? loss_scale * term.weight / static_cast<double>(denominator) : 0;
  }
  for (const models::AuxiliaryTerm& term : spec().auxiliary)
    scales[term.name] =
        (several_ranks && planted("auxiliary_losses_without_the_loss_scale") ? 1 : loss_scale) *
        term.weight / static_cast<double>(denominator(term.per, counts, data));
  return scales;
}

int64_t Stepper::denominator(models::AuxiliaryTerm::Per per, const Counts& counts,
                             const data::StepData& data) const {
  int64_t n = counts.totals.front().real_tokens;
  if (per == models::AuxiliaryTerm::Per::kSample) n = counts.samples;
  if (per == models::AuxiliaryTerm::Per::kMicrobatch)
    n = std::ssize(data.microbatches) * groups_.dp().size();
  return std::max<int64_t>(1, n);
}

at::Tensor Stepper::expert_counts(const nn::StepState& state) const {
  const models::ModelSpec& model = spec();
  if (model.expert_layers.empty()) return {};
  const at::Tensor counts = at::zeros({std::ssize(model.expert_layers), model.experts + 1},
                                      at::dtype(at::kLong).device(model_->device));
  for (size_t i = 0; i < model.expert_layers.size(); ++i) {
    const auto found = state.expert_counts.find(model.expert_layers[i]); // of this rank's stages
    if (found != state.expert_counts.end())
      counts.select(0, static_cast<int64_t>(i)).copy_(found->second);
  }
  comm::all_reduce_(counts, comm::ReduceOp::kSum,
                    planted("expert_counts_of_the_data_parallel_group") ? groups_.dp()
                                                                        : groups_.world());
  return counts;
}

bool Stepper::remembers_choices() const {
  return std::ranges::any_of(spec().auxiliary, [](const models::AuxiliaryTerm& term) {
    return term.name == parallel::balance_term(parallel::Balance::kGlobal);
  });
}

void Stepper::apply_expert_counts(const at::Tensor& counts, const at::Tensor& apply) {
  if (!counts.defined()) return;
  const models::ModelSpec& model = spec();
  const models::ModelConfig& config = model_->model->config();
  ExpertChoices choices;
  for (size_t i = 0; i < model.expert_layers.size(); ++i) {
    const at::Tensor row = counts.select(0, static_cast<int64_t>(i)).slice(0, 0, model.experts);
    const std::string& layer = model.expert_layers[i];
    if (remembers_choices()) {
      const int64_t* const first = row.const_data_ptr<int64_t>();
      choices[layer] = {first, first + row.numel()};
    }
    for (nn::Param& buffer : model_->model->params().buffers())
      if (buffer.trainable && buffer.name() == layer + ".router.expert_bias")
        parallel::update_expert_bias(buffer.value(), apply.defined() ? row * apply : row,
                                     config.moe_router_bias_update_rate);
  }
  set_expert_choices(choices);
}

ExpertChoices Stepper::expert_choices() const {
  return expert_choices_;
}

void Stepper::set_expert_choices(const ExpertChoices& choices) {
  expert_choices_.clear();
  expert_loads_.clear();
  for (const std::string& layer : spec().expert_layers) {
    const auto found = choices.find(layer);
    if (found == choices.end() || std::ssize(found->second) != spec().experts) continue;
    const std::vector<int64_t>& counts = expert_choices_[layer] = found->second;
    const at::Tensor load = at::tensor(counts, at::kDouble);
    expert_loads_[layer] = nn::to_device(load / load.sum().clamp_min(1), model_->device);
  }
}

std::vector<Prediction> Stepper::gathered_predictions(const nn::StepState& state) const {
  std::vector<double> own;
  const auto found = state.predictions.find(spec().losses.front().name);
  if (counts_here() && found != state.predictions.end())
    for (const auto& p : found->second) own.insert(own.end(), {p.predicted, p.label});
  const at::Tensor size = at::full({1}, static_cast<int64_t>(own.size()), at::kLong);
  const at::Tensor sizes = comm::all_gather(size, 0, groups_.world());
  const int64_t* const each = sizes.const_data_ptr<int64_t>();
  own.resize(static_cast<size_t>(*std::max_element(each, each + sizes.numel())));
  std::vector<Prediction> all;
  if (own.empty()) return all;
  const at::Tensor values =
      comm::all_gather(at::tensor(own, at::kDouble).unsqueeze(0), 0, groups_.world());
  for (int64_t rank = 0; rank < sizes.numel(); ++rank) {
    const double* const row = values.const_data_ptr<double>() + rank * values.size(1);
    for (int64_t i = 0; i < each[rank]; i += 2) all.push_back({row[i], row[i + 1]});
  }
  return all;
}

std::string Stepper::shared_name(const std::string& here) const {
  const std::vector<std::string> names = comm::gather_text(here, groups_.world());
  const auto first = std::ranges::find_if(names, [](const std::string& n) { return !n.empty(); });
  if (first == names.end()) return {};
  return names.size() == 1 ? *first : fmt::format("{} on rank {}", *first, first - names.begin());
}

at::Tensor Stepper::gathered_figures(const nn::StepState& state, const StepOptions& options,
                                     const at::Tensor& expert_counts) const {
  const parallel::DataParallel& store = *model_->store;
  std::vector<at::Tensor> own = own_losses(state);
  const at::Tensor none = at::zeros_like(own.front());
  for (const models::AuxiliaryTerm& term : spec().auxiliary) { // each rank has tokens of its own
    const auto found = state.loss_sums.find(term.name);
    own.push_back(found != state.loss_sums.end() ? found->second : none);
  }
  own.push_back(options.check_copies ? store.has_nonfinite_copies().to(at::kDouble) : none);
  own.push_back(store.counted_sum_of_squares());
  const at::Tensor sums = at::stack(own);
  comm::all_reduce_(sums, comm::ReduceOp::kSum, groups_.world());
  if (!expert_counts.defined()) return sums;
  return at::cat({sums, expert_counts.view({-1}).to(at::kDouble)});
}

QueuedStep Stepper::passes(const data::StepData& data, const StepOptions& options,
                           nn::StepState& state) {
  QueuedStep step;
  Counts counts;
  {
    const PhaseTimer timer(options.times, "count targets");
    counts = global_counts(data);
  }
  step.targets = counts.targets;
  step.totals = counts.totals;
  step.head_rows = counts.head_rows;
  step.loss_scale = options.loss_scale;
  step.global_balance = !expert_loads_.empty(); // not in the first step
  for (const models::AuxiliaryTerm& term : spec().auxiliary)
    step.auxiliary.push_back(denominator(term.per, counts, data));
  if (std::ranges::all_of(counts.targets, [](int64_t n) { return n == 0; })) return step;
  parallel::DataParallel& store = *model_->store;
  const std::vector<nn::Microbatch> microbatches = inputs(data);
  const pipeline::Schedule& passes = schedule(Use::kTraining, microbatches.size());
  store.defer_to_flush(pipeline::defers_weight_gradients(passes));
  store.begin_step();
  {
    const nn::MemoryScope scope(nn::MemoryCategory::kActivations);
    runtime_.run(passes, microbatches, state,
                 {.loss_scales = loss_scales(counts, data, options.loss_scale),
                  .gradient_rows = &gradient_rows_,
                  .expert_loads =
                      groups_.pp().rank() > 0 && planted("global_balance_without_the_last_layers")
                          ? &kNoLoads
                          : &expert_loads_,
                  .wanted = {.max_logits = clip_.on()},
                  .seed = options.seed,
                  .training = true,
                  .check_finite = options.find_nonfinite_layer,
                  .forwards_done = [&] { store.forwards_done(); },
                  .weight_passes_done = [&] { store.flush(); },
                  .turns = model_->turns.get(),
                  .intervals = options.times != nullptr ? &options.times->passes : nullptr});
  }
  {
    const PhaseTimer timer(options.times, "reduce gradients");
    store.finish_gradients();
  }
  const PhaseTimer timer(options.times, "loss and norm");
  step.expert_counts = expert_counts(state);
  step.figures = gathered_figures(state, options, step.expert_counts);
  return step;
}

StepResult Stepper::result_of(const QueuedStep& step, const double* figures) const {
  StepResult result;
  result.totals = step.totals;
  result.head_rows = step.head_rows;
  result.terms.resize(spec().losses.size());
  if (!step.figures.defined()) return result;
  result.computed = true;
  double total = 0;
  bool whole = true;
  for (size_t i = 0; i < result.terms.size(); ++i) {
    const models::LossTerm& term = spec().losses[i];
    if (step.targets[i] == 0) {
      whole = whole && !term.evaluated;
      continue;
    }
    result.terms[i] = plain(figures[i] / static_cast<double>(step.targets[i]));
    if (term.evaluated) total += term.weight * *result.terms[i];
  }
  if (whole) result.loss = plain(total);
  const double* next = figures + result.terms.size();
  for (size_t i = 0; i < spec().auxiliary.size(); ++i, ++next) {
    result.auxiliary.emplace_back();
    if (spec().auxiliary[i].name == parallel::balance_term(parallel::Balance::kGlobal) &&
        !step.global_balance)
      continue;
    result.auxiliary.back() =
        plain(*next / static_cast<double>(step.auxiliary[i] * std::ssize(spec().expert_layers)));
  }
  const bool several = groups_.world().size() > 1;
  const double scale = several && planted("norm_of_scaled_gradients") ? 1 : step.loss_scale;
  const bool copies_finite = *next++ == 0;
  result.grad_norm = plain(std::sqrt(*next++) / scale);
  // Nobody updates what anybody found to be not finite, or copies would differ.
  if (!copies_finite && std::isfinite(*result.grad_norm))
    result.grad_norm = std::numeric_limits<double>::infinity();
  result.finite = losses_are_finite(result) && std::isfinite(*result.grad_norm);
  if (step.expert_counts.defined()) {
    result.expert_counts = at::empty(step.expert_counts.sizes(), at::kLong);
    int64_t* const counts = result.expert_counts.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < result.expert_counts.numel(); ++i)
      counts[i] = static_cast<int64_t>(*next++);
  }
  if (step.decided) { // as the device has, whose divisions may round differently
    result.finite = *next++ != 0;
    result.too_large = *next++ != 0;
  }
  return result;
}

StepResult Stepper::step(const data::StepData& data, const StepOptions& options) {
  parallel::DataParallel& store = *model_->store;
  nn::StepState state;
  const QueuedStep step = passes(data, options, state);
  if (!step.figures.defined()) return result_of(step, nullptr);
  const at::Tensor figures = nn::host_values(step.figures);
  StepResult result = result_of(step, figures.const_data_ptr<double>());
  QkClip::Result logits;
  if (clip_.on()) {
    const PhaseTimer timer(options.times, "loss and norm");
    logits = clip_.result(state, groups_, model_->device);
    result.logits.most = plain(logits.max_logit);
  }
  const bool several = groups_.world().size() > 1;
  const auto own_squares = [&] { return nn::host_value<double>(store.counted_sum_of_squares()); };
  if (several && planted("overflow_of_one_rank")) result.finite = std::isfinite(own_squares());
  if (!result.finite) {
    if (options.find_nonfinite_layer) {
      result.first_nonfinite = shared_name(state.first_nonfinite);
      if (result.first_nonfinite.empty()) {
        const std::string name = shared_name(optim::first_nonfinite_gradient(store.shards()));
        if (!name.empty()) result.first_nonfinite = "the gradient of " + name;
      }
    }
    return result;
  }
  const double threshold = options.grad_norm_skip_threshold;
  result.too_large = threshold > 0 && *result.grad_norm > threshold;
  if (result.too_large) return result;
  const double norm =
      planted("clipped_by_the_norm_of_one_rank") ? std::sqrt(own_squares()) : *result.grad_norm;
  {
    const PhaseTimer timer(options.times, "optimizer");
    const double unscale =
        several && planted("gradients_not_unscaled") ? 1 : 1 / options.loss_scale;
    optimizer_->step(options.lr, options.weight_decay,
                     unscale * optim::clip_coefficient(options.clip_grad, norm), logits.scaled);
    if (clip_.clips()) result.logits.clipped_heads = logits.clipped_heads;
    apply_expert_counts(result.expert_counts); // on the host, which remembers them
  }
  const PhaseTimer timer(options.times, "publish parameters");
  store.publish_values();
  return result;
}

bool Stepper::can_queue() const {
  const auto narrow = [](const nn::Param& param) { return param.low_precision.has_value(); };
  return optimizer_->can_queue() && !clip_.on() && !remembers_choices() &&
         std::ranges::none_of(model_->model->params(), narrow);
}

/// The decisions of step(), in the same operations on the device.
QueuedStep Stepper::queue(const data::StepData& data, const StepOptions& options) {
  PT_DCHECK(!options.find_nonfinite_layer && !options.check_copies);
  nn::StepState state;
  QueuedStep step = passes(data, options, state);
  if (!step.figures.defined()) return step;
  const at::Tensor& sums = step.figures;
  at::Tensor total = at::zeros({}, sums.options());
  for (size_t i = 0; i < step.targets.size(); ++i)
    if (step.targets[i] > 0 && spec().losses[i].evaluated)
      total = total + sums.select(0, static_cast<int64_t>(i)) /
                          static_cast<double>(step.targets[i]) * spec().losses[i].weight;
  const auto squares = static_cast<int64_t>(step.targets.size() + step.auxiliary.size()) + 1;
  const at::Tensor norm = sums.select(0, squares).sqrt() / options.loss_scale;
  const at::Tensor finite = at::isfinite(total).logical_and(at::isfinite(norm));
  const double threshold = options.grad_norm_skip_threshold;
  const at::Tensor too_large = threshold > 0 ? norm > threshold : at::zeros_like(finite),
                   apply = finite.logical_and(too_large.logical_not());
  at::Tensor scale = at::full({}, 1 / options.loss_scale, sums.options());
  if (options.clip_grad > 0)
    scale =
        scale * at::div(at::full({}, options.clip_grad, sums.options()), norm + 1e-6).clamp_max(1);
  {
    const PhaseTimer timer(options.times, "optimizer");
    optimizer_->queue_step(options.lr, options.weight_decay,
                           at::stack({scale, apply.to(at::kDouble)}));
    apply_expert_counts(step.expert_counts, apply.to(at::kLong));
  }
  const PhaseTimer timer(options.times, "publish parameters");
  model_->store->publish_values();
  step.figures = at::cat({sums, at::stack({finite, too_large}).to(at::kDouble)});
  step.decided = true;
  return step;
}

std::vector<StepResult> Stepper::read(const std::vector<QueuedStep>& steps) const {
  std::vector<at::Tensor> all;
  for (const QueuedStep& step : steps)
    if (step.figures.defined()) all.push_back(step.figures);
  const at::Tensor figures = all.empty() ? at::Tensor() : nn::host_values(at::cat(all));
  const double* next = all.empty() ? nullptr : figures.const_data_ptr<double>();
  std::vector<StepResult> results;
  for (const QueuedStep& step : steps) {
    results.push_back(result_of(step, next));
    if (step.figures.defined()) next += step.figures.numel();
  }
  return results;
}

EvaluationSums Stepper::evaluate(const data::StepData& data) {
  const std::vector<nn::Microbatch> microbatches = inputs(data);
  nn::StepState state;
  const bool scores = wants_scores(spec());
  {
    const nn::MemoryScope scope(nn::MemoryCategory::kActivations);
    pipeline::RunOptions options;
    options.wanted.scores = scores;
    options.training = groups_.world().size() > 1 && planted("evaluation_with_dropout");
    runtime_.run(schedule(Use::kEvaluation, microbatches.size()), microbatches, state, options);
  }
  std::vector<at::Tensor> own = own_losses(state);
  for (const models::LossTerm& term : spec().losses) {
    const auto found = state.hits.find(term.name);
    own.push_back(counts_here() && found != state.hits.end() ? found->second.to(at::kDouble)
                                                             : at::zeros_like(own.front()));
  }
  const at::Tensor all = at::stack(own);
  comm::all_reduce_(all, comm::ReduceOp::kSum, groups_.world());
  const at::Tensor read = nn::host_values(all);
  const double* const sums = read.const_data_ptr<double>();
  EvaluationSums result;
  const std::vector<int64_t> targets = global_counts(data).targets;
  for (size_t i = 0; i < targets.size(); ++i)
    result.terms.push_back(
        {plain(sums[i]), spec().losses[i].evaluated ? targets[i] : 0, sums[targets.size() + i]});
  if (spec().scores != models::SampleScores::kNone)
    result.predictions = gathered_predictions(state);
  return result;
}

} // namespace pentatron::trainer
