#include "pentatron/trainer/step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/format.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/parallel/context/zigzag.h"
#include "pentatron/parallel/expert/balance.h"
#include "pentatron/parallel/pipeline/schedule/check.h"
#include "pentatron/parallel/pipeline/schedule/forward_only.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"

namespace pentatron::trainer {

namespace {

at::Tensor int64_tensor(const std::vector<int64_t>& values, at::Device device) {
  at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), host.data_ptr<int64_t>());
  return host.to(device);
}

/// Elementwise sums over the group.
std::vector<double> summed(const std::vector<double>& values, const comm::Group& group) {
  const at::Tensor x = at::tensor(values, at::kDouble);
  comm::all_reduce_(x, comm::ReduceOp::kSum, group);
  const double* const sums = x.data_ptr<double>();
  return {sums, sums + values.size()};
}

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

/// Whether weight gradients have passes of their own.
bool defers_weight_gradients(const pipeline::Schedule& schedule) {
  const auto is_weight_pass = [](const pipeline::Action& action) {
    return action.kind == pipeline::ActionKind::kBackwardWeight;
  };
  return std::any_of(schedule.actions.begin(), schedule.actions.end(), [&](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(), is_weight_pass);
  });
}

/// The sign of a NaN means nothing, but is printed.
double plain(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

/// Takes this rank's part of each sample. `streams`: names of the layouts.
void cut_context(nn::Microbatch& input, const data::Batch& batch,
                 const std::vector<std::string>& streams, const comm::Group& context) {
  if (context.size() == 1) return;
  for (nn::SequenceLayout& layout : input.layouts)
    layout = parallel::cut_samples(std::move(layout), context.rank(), context.size());
  for (auto& [name, values] : input.fields) {
    const std::string& stream = batch.fields.at(name).field.stream;
    const auto place = std::ranges::find(streams, stream) - streams.begin();
    if (stream.empty()) continue;
    const nn::SequenceLayout& layout = input.layouts[static_cast<size_t>(place)];
    values = parallel::own_tokens(values, layout);
    if (!name.starts_with("mtp_") || !planted("shifted_within_the_chunks_of_a_context_rank"))
      continue;
    int64_t end = 0;
    for (const nn::SampleChunk& chunk : layout.chunks) values[(end += chunk.size) - 1] = 0;
  }
}

} // namespace

std::string skip_text(const StepResult& result, const StepOptions& options) {
  if (!result.too_large) return "its batch has no targets";
  return fmt::format("its gradient norm {:.4g} is larger than "
                     "optimizer.grad_norm_skip_threshold={:.4g}",
                     *result.grad_norm, options.grad_norm_skip_threshold);
}

std::string nonfinite_text(const StepResult& result) {
  std::vector<std::string> what;
  if (result.loss && !std::isfinite(*result.loss))
    what.push_back(fmt::format("loss {:g}", *result.loss));
  if (result.grad_norm && !std::isfinite(*result.grad_norm))
    what.push_back(fmt::format("gradient norm {:g}", *result.grad_norm));
  return fmt::format(
      "{} {} not finite{}{}", fmt::join(what, " and "), what.size() == 1 ? "is" : "are",
      result.first_nonfinite.empty() ? "" : ", first seen in ", result.first_nonfinite);
}

nn::Microbatch model_input(const data::Batch& batch, const std::vector<std::string>& streams,
                           at::Device device) {
  const nn::MemoryScope scope(nn::MemoryCategory::kData);
  const std::vector<uint64_t> ids(batch.sample_ids.begin(), batch.sample_ids.end());
  nn::Microbatch input;
  for (const std::string& name : streams) {
    const data::StreamShape& shape = batch.stream(name);
    nn::SequenceLayout& layout = input.layouts.emplace_back(nn::SequenceLayout::ragged(
        shape.sequence_length, ids, shape.sample_starts, shape.cu_seqlens, device));
    // The loader decides where positions start again, which need not be where attention does.
    layout.positions = int64_tensor(shape.position_ids, device).to(at::kInt);
    layout.positions_given = shape.positions_given;
    for (const data::StreamRange& range : shape.real)
      layout.real.push_back({range.begin, range.end});
  }
  for (const auto& [name, values] : batch.fields) {
    input.fields[name] = values.field.type == data::FieldType::kInt64
                             ? int64_tensor(values.ints, device)
                             : at::tensor(values.floats, at::kDouble).to(device);
  }
  return input;
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
  }
  int64_t samples = 0;
  for (const data::Batch& batch : data.microbatches) samples += std::ssize(batch.sample_ids);
  own.push_back(samples);
  // Context ranks have parts of the same samples, and count them whole.
  const bool wrong = groups_.lists("dp-cp") && planted("targets_counted_by_every_context_rank");
  const comm::Group& ranks = groups_.get(wrong ? "dp-cp" : "dp");
  const at::Tensor all = comm::all_reduce(int64_tensor(own, at::kCPU), comm::ReduceOp::kSum, ranks);
  const int64_t* sums = all.const_data_ptr<int64_t>();
  Counts counts;
  for (size_t i = 0; i < spec().losses.size(); ++i) counts.targets.push_back(*sums++);
  for (size_t i = 0; i < spec().streams.size(); ++i, sums += 3)
    counts.totals.push_back(
        {.tokens = sums[0], .real_tokens = sums[1], .squared_lengths = sums[2]});
  counts.samples = *sums;
  return counts;
}

const pipeline::Schedule& Stepper::schedule(Use use, size_t num_microbatches) {
  const auto [slot, fresh] = schedules_.try_emplace({use, num_microbatches});
  if (fresh) {
    const pipeline::Schedule made = plan_.make(static_cast<int>(num_microbatches));
    if (use == Use::kTraining) {
      slot->second = pipeline::lower(made);
      pipeline::require_valid(slot->second);
    } else {
      slot->second = pipeline::lower(pipeline::forward_only(made));
    }
  }
  return slot->second;
}

std::vector<nn::Microbatch> Stepper::inputs(const data::StepData& data) const {
  const parallel::TensorParallel& tp = model_->model->tensor_parallel();
  std::vector<nn::Microbatch> inputs;
  for (const data::Batch& batch : data.microbatches) {
    inputs.push_back(model_input(batch, model_->model->spec().streams, model_->device));
    if (groups_.pp().rank() > 0 && planted("padding_seen_on_later_stages"))
      for (nn::SequenceLayout& layout : inputs.back().layouts) layout.real.clear();
    cut_context(inputs.back(), batch, model_->model->spec().streams,
                model_->model->context_group());
    if (tp.sequence)
      for (nn::SequenceLayout& layout : inputs.back().layouts)
        layout.cut_outer(tp.rank(), tp.size());
  }
  return inputs;
}

bool Stepper::counts_here() const {
  return groups_.tp().rank() == 0 || planted("loss_counted_by_every_tensor_rank");
}

std::vector<double> Stepper::own_losses(const nn::StepState& state) const {
  std::vector<double> sums;
  for (const models::LossTerm& term : spec().losses) {
    const auto found = state.loss_sums.find(term.name); // on the last stage only
    sums.push_back(counts_here() && found != state.loss_sums.end() ? found->second : 0);
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
  const at::Tensor counts =
      at::zeros({std::ssize(model.expert_layers), model.experts + 1}, at::kLong);
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

void Stepper::apply_expert_counts(const at::Tensor& counts) {
  if (!counts.defined()) return;
  const models::ModelSpec& model = spec();
  const models::ModelConfig& config = model_->model->config();
  const bool remembered =
      std::ranges::any_of(model.auxiliary, [](const models::AuxiliaryTerm& term) {
        return term.name == parallel::balance_term(parallel::Balance::kGlobal);
      });
  ExpertChoices choices;
  for (size_t i = 0; i < model.expert_layers.size(); ++i) {
    const at::Tensor row = counts.select(0, static_cast<int64_t>(i)).slice(0, 0, model.experts);
    const std::string& layer = model.expert_layers[i];
    if (remembered) {
      const int64_t* const first = row.const_data_ptr<int64_t>();
      choices[layer] = {first, first + row.numel()};
    }
    for (nn::Param& buffer : model_->model->params().buffers())
      if (buffer.trainable && buffer.name() == layer + ".router.expert_bias")
        parallel::update_expert_bias(buffer.value(), row, config.moe_router_bias_update_rate);
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
    expert_loads_[layer] = load / std::max(1.0, load.sum().item<double>());
  }
}

std::vector<Prediction> Stepper::gathered_predictions(const nn::StepState& state) const {
  std::vector<double> own;
  const auto found = state.predictions.find(spec().losses.front().name);
  if (counts_here() && found != state.predictions.end())
    for (const auto& p : found->second) own.insert(own.end(), {p.predicted, p.label});
  const at::Tensor size = at::full({1}, static_cast<int64_t>(own.size()), at::kLong);
  const at::Tensor sizes = comm::all_gather(size, 0, groups_.world());
  own.resize(static_cast<size_t>(sizes.max().item<int64_t>()));
  std::vector<Prediction> all;
  if (own.empty()) return all;
  const at::Tensor values =
      comm::all_gather(at::tensor(own, at::kDouble).unsqueeze(0), 0, groups_.world());
  for (int64_t rank = 0; rank < sizes.numel(); ++rank) {
    const double* const row = values.const_data_ptr<double>() + rank * values.size(1);
    for (int64_t i = 0; i < sizes.const_data_ptr<int64_t>()[rank]; i += 2)
      all.push_back({row[i], row[i + 1]});
  }
  return all;
}

std::string Stepper::shared_name(const std::string& here) const {
  const std::vector<std::string> names = comm::gather_text(here, groups_.world());
  const auto first = std::ranges::find_if(names, [](const std::string& n) { return !n.empty(); });
  if (first == names.end()) return {};
  return names.size() == 1 ? *first : fmt::format("{} on rank {}", *first, first - names.begin());
}

StepResult Stepper::step(const data::StepData& data, const StepOptions& options) {
  StepResult result;
  Counts counts;
  {
    const PhaseTimer timer(options.times, "count targets");
    counts = global_counts(data);
  }
  result.terms.resize(spec().losses.size());
  result.totals = counts.totals;
  if (std::ranges::all_of(counts.targets, [](int64_t n) { return n == 0; })) return result;
  parallel::DataParallel& store = *model_->store;
  const std::vector<nn::Microbatch> microbatches = inputs(data);
  nn::StepState state;
  const pipeline::Schedule& passes = schedule(Use::kTraining, microbatches.size());
  store.defer_to_flush(defers_weight_gradients(passes));
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
                  .intervals = options.times != nullptr ? &options.times->passes : nullptr});
  }
  {
    const PhaseTimer timer(options.times, "reduce gradients");
    store.finish_gradients();
  }
  std::vector<double> sums;
  QkClip::Result logits;
  {
    const PhaseTimer timer(options.times, "loss and norm");
    sums = own_losses(state);
    for (const models::AuxiliaryTerm& term : spec().auxiliary) { // each rank has tokens of its own
      const auto found = state.loss_sums.find(term.name);
      sums.push_back(found != state.loss_sums.end() ? found->second : 0);
    }
    sums.push_back(options.check_copies && store.has_nonfinite_copies() ? 1 : 0);
    sums.push_back(store.counted_sum_of_squares());
    sums = summed(sums, groups_.world());
    result.expert_counts = expert_counts(state);
    if (clip_.on()) logits = clip_.result(state, groups_);
  }
  if (clip_.on()) result.logits.most = plain(logits.max_logit);
  for (size_t i = 0; i < spec().auxiliary.size(); ++i) {
    result.auxiliary.emplace_back();
    if (spec().auxiliary[i].name == parallel::balance_term(parallel::Balance::kGlobal) &&
        expert_loads_.empty())
      continue; // the first step
    result.auxiliary.back() =
        plain(sums[result.terms.size() + i] /
              static_cast<double>(denominator(spec().auxiliary[i].per, counts, data) *
                                  std::ssize(spec().expert_layers)));
  }
  double total = 0;
  for (size_t i = 0; i < result.terms.size(); ++i) {
    if (counts.targets[i] == 0) continue;
    result.terms[i] = plain(sums[i] / static_cast<double>(counts.targets[i]));
    if (spec().losses[i].evaluated) total += spec().losses[i].weight * *result.terms[i];
  }
  result.loss = plain(total);
  const bool several = groups_.world().size() > 1;
  const double scale = several && planted("norm_of_scaled_gradients") ? 1 : options.loss_scale;
  result.grad_norm = plain(std::sqrt(sums.back()) / scale);
  // Nobody updates what anybody found to be not finite, or copies would differ.
  if (sums[sums.size() - 2] > 0 && std::isfinite(*result.grad_norm))
    result.grad_norm = std::numeric_limits<double>::infinity();
  result.finite = std::isfinite(*result.loss) && std::isfinite(*result.grad_norm);
  if (several && planted("overflow_of_one_rank"))
    result.finite = std::isfinite(store.counted_sum_of_squares());
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
  const double norm = planted("clipped_by_the_norm_of_one_rank")
                          ? std::sqrt(store.counted_sum_of_squares())
                          : *result.grad_norm;
  {
    const PhaseTimer timer(options.times, "optimizer");
    const double unscale =
        several && planted("gradients_not_unscaled") ? 1 : 1 / options.loss_scale;
    optimizer_->step(options.lr, options.weight_decay,
                     unscale * optim::clip_coefficient(options.clip_grad, norm), logits.scaled);
    if (clip_.clips()) result.logits.clipped_heads = logits.clipped_heads;
    apply_expert_counts(result.expert_counts);
  }
  const PhaseTimer timer(options.times, "publish parameters");
  store.publish_values();
  return result;
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
  std::vector<double> own = own_losses(state);
  for (const models::LossTerm& term : spec().losses) {
    const auto found = state.hits.find(term.name);
    own.push_back(counts_here() && found != state.hits.end() ? static_cast<double>(found->second)
                                                             : 0);
  }
  const std::vector<double> sums = summed(own, groups_.world());
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
