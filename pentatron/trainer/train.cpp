#include "pentatron/trainer/train.h"

#include <ATen/ATen.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/model_files.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/run_checkpoint.h"
#include "pentatron/checkpoint/run_saver.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/data/data_files.h"
#include "pentatron/data/entropy.h"
#include "pentatron/data/loader.h"
#include "pentatron/trainer/adapters.h"
#include "pentatron/trainer/check_run.h"
#include "pentatron/trainer/checkpoint_export.h"
#include "pentatron/trainer/contention_notice.h"
#include "pentatron/trainer/delayed_scales.h"
#include "pentatron/trainer/described_run.h"
#include "pentatron/trainer/differences.h"
#include "pentatron/trainer/families.h"
#include "pentatron/trainer/input_log.h"
#include "pentatron/trainer/kernel_choice.h"
#include "pentatron/trainer/loss_scaling.h"
#include "pentatron/trainer/memory_report.h"
#include "pentatron/trainer/notices.h"
#include "pentatron/trainer/offload.h"
#include "pentatron/trainer/recompute.h"
#include "pentatron/trainer/reporter.h"
#include "pentatron/trainer/resume.h"
#include "pentatron/trainer/run_data.h"
#include "pentatron/trainer/run_files.h"
#include "pentatron/trainer/run_identity.h"
#include "pentatron/trainer/run_samples.h"
#include "pentatron/trainer/run_tasks.h"
#include "pentatron/trainer/runtime.h"
#include "pentatron/trainer/save_options.h"
#include "pentatron/trainer/starting_weights.h"
#include "pentatron/trainer/step.h"
#include "pentatron/trainer/step_queue.h"
#include "pentatron/trainer/stop.h"
#include "pentatron/trainer/stored_tokenizer.h"
#include "pentatron/trainer/tracer.h"
#include "pentatron/trainer/validate.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

struct Trainer::State {
  Config config;
  std::unique_ptr<RunFolders> folders;
  parallelize::PipelinePlan plan;
  std::shared_ptr<comm::Recorder> recorder = std::make_shared<comm::Recorder>();
  comm::ParallelGroups groups;
  bool main_rank;
  at::Device device;
  std::shared_ptr<const data::Tokenizer> tokenizer;
  data::Datasets datasets;
  DelayedScales delayed_scales; ///< parameters of the model point into it
  parallelize::TrainingModel model;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<Stepper> stepper;
  std::unique_ptr<data::Loader> loader;
  LossScaling scaling;
  optim::BatchSizeSchedule batch_sizes = optim::BatchSizeSchedule::constant(1);
  checkpoint::TrainState progress;
  StoredTokenizer stored_tokenizer;
  std::optional<RunTasks> tasks;
  std::optional<RunSamples> samples;
  std::string data_files;                            ///< of this run, as checkpoints keep them
  std::string kernel_choice;                         ///< the choice, as checkpoints keep it
  std::map<std::string, std::string> files_of_model; ///< config.json of where it began
  std::optional<checkpoint::FoundCheckpoint> found;  ///< what is loaded, unless from elsewhere
  checkpoint::KnownDamage damaged;                   ///< that was found while loading
  std::optional<checkpoint::AdapterBase> base;       ///< of a run with adapters
  std::string started_from; ///< the model whose weights the run began with; empty: none
  std::string repair;       ///< the command for what was passed over, if the run will move that
  std::unique_ptr<checkpoint::RunSaver> saver;
  int64_t total_iterations = 0, sequence = 0;
  std::vector<int64_t> lengths; ///< of the samples, by the model's streams
  State(Config c, const comm::Group& world, std::unique_ptr<RunFolders> of_run);
  void open_data();
  void build_model();
  void find_checkpoint();
  void choose_kernels();
  void load();
  void load_found();
  void forget();
  std::string describe() const;
  data::LoaderOptions loader_options(int64_t consumed) const;
  std::vector<checkpoint::SaveEvent> save();
  TrainReport train(Reporter& reporter, bool late_figures);
};

Trainer::State::State(Config c, const comm::Group& world, std::unique_ptr<RunFolders> of_run)
    : config(with_recomputation(equal_config(std::move(c), world), world)),
      folders(of_run ? std::move(of_run) : std::make_unique<RunFolders>(config, world)),
      plan(pipeline_plan(config)),
      groups(
          parallelize::make_groups(config.profiling.trace ? comm::recorded(world, recorder) : world,
                                   config.parallel, &config.ddp, config.model, plan)),
      main_rank(world.rank() == 0), device(rank_device(config.device, world)),
      scaling(config.mixed_precision, config.dtype) {
  batch_sizes = batch_schedule(config.train);
  total_iterations = trainer::total_iterations(config.train);
  open_data();
  find_checkpoint();
  choose_kernels();
  build_model();
  load();
  if (!config.checkpoint.save.empty())
    saver = std::make_unique<checkpoint::RunSaver>(save_options(config.checkpoint), groups.world());
  loader =
      std::make_unique<data::Loader>(datasets.train, loader_options(progress.consumed_samples));
}

void Trainer::State::open_data() {
  RunData run = open_run_data(config, groups.world());
  tokenizer = std::move(run.tokenizer);
  datasets = std::move(run.datasets);
  if (!datasets.label_names.empty()) config.model.label_names = datasets.label_names;
  sequence = datasets.train->sequence_length();
  for (const std::string& stream : models::model_spec(config.model).streams)
    lengths.push_back(datasets.train->sequence_length(stream));
  stored_tokenizer = trainer::stored_tokenizer(config.tokenizer);
  tasks.emplace(config);
  samples.emplace(config, *tokenizer);
  data_files = comm::broadcast_text(
      main_rank ? data::to_json(data::describe_files(datasets.files)) : "", 0, groups.world());
  log_input(config, datasets, *tokenizer, run.samples);
  for (const std::string& notice :
       notices(config, groups.world().size(), datasets.validation != nullptr))
    log::shared_warning("{}", notice);
}

void Trainer::State::build_model() {
  const auto offload = activation_offload(config.offload, device);
  auto adapters = plan_adapters(config); // both throw: in the list, g++ 12 destroys others twice
  model = parallelize::make_training_model(
      {.config = config.model,
       .build = {.dtype = scalar_type(config.dtype),
                 .tp = {groups.tp(), config.parallel.sequence_parallel, config.comm_overlap.tp},
                 .experts = {.kind = config.parallel.moe_token_dispatcher_type,
                             .overlap_shared = config.comm_overlap.moe_shared_expert,
                             .turns = config.comm_overlap.moe_expert_parallel
                                          ? std::make_shared<nn::Turns>(device)
                                          : nullptr},
                 .context =
                     parallelize::context_parallel(config.parallel, config.comm_overlap.cp, groups),
                 .chunks = {.recompute = recomputation(config.train),
                            .offload = offload,
                            .offloaded = config.offload.num_layers,
                            .graphs = config.train.cuda_graphs},
                 .adapters = std::move(adapters)},
       .device = device,
       .max_sequence = *std::ranges::max_element(lengths),
       .prepare = [&](nn::ParamList& params) { plan_families(params, config, device); }},
      plan, config.ddp, groups);
  delayed_scales.attach(model.model->params(), config, device, groups.world());
  if (groups.world().size() > 1) log::info("{}", describe());
  if (groups.tp().size() > 1 && config.dtype == Precision::kBf16)
    log::info("with tensor parallelism, bf16 sums round differently than on one rank: losses are "
              "equal on average, but not digit by digit");
  if (const std::string keys = keys_of_one_layout(config);
      groups.world().size() > 1 && !keys.empty())
    log::info("results depend on the number of ranks and microbatches, because of {}", keys);
  if ((!found && !foreign_model(config.checkpoint)) ||
      config.checkpoint.strictness == checkpoint::Strictness::kLogAll)
    model.store->write_values([&](nn::Param& param) { param.initialize(config.seed); });
  optimizer =
      std::make_unique<optim::Optimizer>(config.optimizer, model.store->shards(), groups.world(),
                                         optimizer_offload(config.offload, device));
  stepper = std::make_unique<Stepper>(model, *optimizer, groups, plan, qk_clip_options(config));
}

void Trainer::State::find_checkpoint() {
  const CheckpointConfig& c = config.checkpoint;
  if (c.load.empty() || foreign_model(c)) return;
  const std::string& from = loads_own(c) ? c.save : c.load;
  found = checkpoint::find_run(from, groups.world(), c.node_local, damaged);
  std::error_code error;
  const bool moves = found && !c.finetune && !c.save.empty() &&
                     fs::equivalent(found->folder.parent_path(), c.save, error) &&
                     checkpoint::iteration_of(found->folder.filename()) < total_iterations;
  report_found(c, found, moves);
  repair = moves ? std::string(parts_of(found->passed_over).remedy) : "";
}

void Trainer::State::choose_kernels() {
  std::optional<fs::path> resumed;
  if (found && !config.checkpoint.finetune) resumed = found->folder;
  kernel_choice = trainer::choose_kernels(config, device, resumed, groups.world());
}

void Trainer::State::load() {
  if (config.peft.on()) {
    base = load_base(config, found, model, groups.world());
    files_of_model = checkpoint::model_files(base->model);
    begin_adapters(model, config, base->model, groups.tp());
    optimizer->adopt_values();
    if (!found || config.checkpoint.finetune) {
      started_from = base->model;
      return;
    }
  } else if (const auto where = weights_elsewhere(config.checkpoint, found)) {
    load_weights(*where, model, config, groups.world());
    files_of_model = checkpoint::model_files(*where);
    optimizer->adopt_values();
    started_from = *where;
    return;
  }
  while (found) {
    try {
      return load_found();
    } catch (const checkpoint::DamagedCheckpoint& damage) { // of all ranks alike
      damaged[found->folder] = damage.what();
      forget();
      find_checkpoint();
      choose_kernels(); // those of the checkpoint that is loaded
    }
  }
}

/// Undoes what was loaded from a checkpoint that turned out to be damaged.
void Trainer::State::forget() {
  if (base) {
    if (!config.peft.modules_to_save.empty()) load_base(*base, model, config, groups.world());
    begin_adapters(model, config, base->model, groups.tp());
  } else {
    model.store->write_values([&](nn::Param& param) { param.initialize(config.seed); });
  }
  for (nn::Param& buffer : model.model->params().buffers()) buffer.initialize(config.seed);
  checkpoint::forget_state(*optimizer);
  stepper->set_expert_choices({});
  delayed_scales.reset();
}

void Trainer::State::load_found() {
  const CheckpointConfig& c = config.checkpoint;
  const std::string folder = found->folder.string();
  Config saved = config;
  checkpoint::SavedRun run;
  std::string amaxes; // of delayed scales
  checkpoint::read_together(groups.world(), [&] {
    run = checkpoint::saved_run(found->folder);
    files_of_model = checkpoint::model_files(folder);
    started_from = trainer::started_from(folder);
    const checkpoint::Attachments attachments = checkpoint::read_manifest(folder).attachments;
    const auto stored = attachments.find(kAmaxFile);
    amaxes.clear();
    if (stored != attachments.end())
      amaxes = checkpoint::read_attachment(folder, kAmaxFile, stored->second);
  });
  if (!run.config_yaml.empty()) {
    saved = stored_config(run.config_yaml); // which still has to fit tensor by tensor
    check_saved(saved, config, run.has_training_state, folder);
  }
  const checkpoint::LoadedRun loaded = checkpoint::load_run(
      found->folder, {*model.store, *optimizer, groups.world(), config.peft.on()},
      {.optimizer = c.load_optimizer && !c.finetune,
       .strictness = c.strictness,
       .node_local = c.node_local,
       .was_frozen = [&](const std::string& name) { return is_frozen(saved.train.freeze, name); }});
  for (const std::string& text : loaded.told) log::shared_warning("{}: {}", folder, text);
  const std::string& digest = loaded.state.tokenizer;
  check_digest(c, folder, digest, stored_tokenizer.digest);
  if (c.finetune || !run.has_training_state) {
    started_from = folder;
    log::info("loaded the weights of {}{}: starting at iteration 0 with a new optimizer", folder,
              run.has_training_state ? "" : ", which contains only weights");
    return;
  }
  // The same tokenizer may lie in another folder, such as the checkpoint's.
  if (digest == stored_tokenizer.digest) saved.tokenizer = config.tokenizer;
  if (main_rank)
    for (const std::string& text : data_changes(saved, config, folder, data_files))
      log::warning("{}", text);
  progress = loaded.state;
  if (const std::string text = scaling.load(progress, !c.load_optimizer); !text.empty())
    log::shared_warning("{}: {}", folder, text);
  stepper->set_expert_choices(progress.expert_choices);
  delayed_scales.resume(amaxes, folder);
  const std::string changed = differences(saved, config, {config::OnResume::kTold});
  log::info("resumed from {} at iteration {}{}{}", folder, progress.iteration,
            c.load_optimizer ? "" : " with a new optimizer",
            changed.empty() ? "" : "; it used " + changed);
}

std::string Trainer::State::describe() const {
  return fmt::format("{}\n{}\nschedule {}; {}", groups.describe(),
                     pipeline::describe_stages(plan.stages, plan.rank_of_stage,
                                               parallelize::stage_segments(config.model)),
                     plan.schedule, describe_updates(model.store->shards()));
}

data::LoaderOptions Trainer::State::loader_options(int64_t consumed) const {
  return trainer::loader_options(config, groups.dp(), model.model->spec(), consumed);
}

std::vector<checkpoint::SaveEvent> Trainer::State::save() {
  progress.config_yaml = config::to_yaml(config);
  progress.tokenizer = stored_tokenizer.digest;
  progress.expert_choices = stepper->expert_choices();
  scaling.save(progress);
  progress.eod = tokenizer->eod();
  progress.attachments = stored_tokenizer.files;
  progress.attachments.insert(files_of_model.begin(), files_of_model.end());
  progress.attachments[kKernelsFile] = kernel_choice;
  if (!started_from.empty()) progress.attachments[kStartedFrom] = started_from;
  progress.attachments[data::kDataFilesName] = data_files;
  if (delayed_scales.on()) progress.attachments[kAmaxFile] = delayed_scales.to_json();
  if (base) progress.attachments[checkpoint::kAdapterBase] = checkpoint::to_json(*base);
  return saver->save(progress, {*model.store, *optimizer, groups.world(), base.has_value()});
}

Trainer::Trainer(Config config, const comm::Group& world, std::unique_ptr<RunFolders> folders) {
  const Config given = config;
  try {
    state_ = std::make_unique<State>(std::move(config), world, std::move(folders));
  } catch (const std::exception& error) {
    const std::string memory = out_of_memory_text(given, world, error);
    if (!memory.empty()) raise<Error>("{}", memory);
    throw;
  }
}
Trainer::~Trainer() = default;

parallelize::ModelView Trainer::model() {
  return state_->model;
}
std::string Trainer::describe() const {
  return state_->describe();
}
void Trainer::read_values(const std::function<void(const nn::Param&)>& visit) {
  state_->model.store->read_values(visit);
}
const Config& Trainer::config() const {
  return state_->config;
}
const data::Tokenizer& Trainer::tokenizer() const {
  return *state_->tokenizer;
}

TrainReport Trainer::run(const TrainerOptions& run_options) {
  State& s = *state_;
  const Config& c = s.config;
  const comm::ParallelGroups& g = s.groups;
  if (s.progress.iteration < s.total_iterations) {
    s.folders->begin(s.progress.iteration, g.world(), s.repair);
    if (s.main_rank && s.datasets.report) write_skipped(c, *s.datasets.report);
  }
  const std::vector<models::LossTerm>& losses = s.model.model->spec().losses;
  Reporter reporter(
      c, {.total_iterations = s.total_iterations,
          .resumed_iteration = s.progress.iteration,
          .resumed_samples = s.progress.consumed_samples,
          .tokens_per_sample = s.sequence,
          .world_size = s.groups.world().size(),
          .peak = s.main_rank ? find_peak(c, s.device) : std::nullopt,
          .memory_device = s.device,
          .loss_name = s.model.model->spec().num_evaluated() == 1 ? losses.front().name : "loss",
          .expert_layers = s.model.model->spec().expert_layers,
          .main_rank = s.main_rank,
          .progress_bar = run_options.progress_bar,
          .files = {{kKernelsFile, s.kernel_choice}},
          .version = run_options.version,
          .torch_version = TORCH_VERSION,
          .device = s.device.str(),
          .layout = fmt::format("tp={} cp={} pp={} dp={}", g.tp().size(), g.size("cp"),
                                c.parallel.pipeline_model_parallel_size, g.dp().size()),
          .started_from = s.started_from});
  try {
    TrainReport report = s.train(reporter, run_options.late_figures || !s.device.is_cpu());
    reporter.finish(exit_reason(report));
    report.metrics = reporter.metrics_path();
    report.plot = reporter.plot_path();
    return report;
  } catch (const std::exception& error) {
    const std::string memory = out_of_memory_text(c, s.groups.world(), error);
    reporter.finish(fmt::format("error: {}", memory.empty() ? error.what() : memory));
    if (!memory.empty()) raise<Error>("{}", memory);
    throw;
  }
}

TrainReport Trainer::State::train(Reporter& reporter, bool late_figures) {
  State& s = *this;
  const Config& c = config;
  TrainReport report;
  if (s.datasets.corpus != nullptr) {
    report.unigram_entropy = data::unigram_entropy(*s.datasets.corpus, s.datasets.split.train,
                                                   s.tokenizer->vocab_size());
    // The plot shows the sum of all losses, and this is comparable with that of tokens alone.
    if (s.model.model->spec().num_evaluated() == 1) reporter.set_reference(*report.unigram_entropy);
  }
  Tracer tracer({.profiling = c.profiling, .folder = c.logger.dir, .schedule = s.plan.schedule},
                s.groups, s.recorder);
  const optim::TrainLength length = train_length(c.train);
  optim::LrCurve lr;
  optim::WeightDecayCurve decay;
  if (s.total_iterations > 0) { // else it only evaluates
    lr = optim::lr_curve(c.scheduler, c.optimizer.lr, c.optimizer.min_lr, length);
    decay = optim::weight_decay_curve(c.scheduler, c.optimizer.weight_decay, length);
  }
  const double begin = monotonic_s();
  ContentionNotice contention(s.groups.world());
  const FlopCounter flops(c, *s.model.model, std::ssize(s.plan.stages));
  MemoryPeakLog memory_peak(c, s.groups.world(), s.device);
  int64_t skipped_in_a_row = 0;
  FailedSaves failed(c.checkpoint.on_error, main_rank);
  CheckpointExporter exporter(c.checkpoint.export_weights == optim::WeightsKind::kEma,
                              c.checkpoint.async_save, s.groups.world());
  const auto check_export = [&] {
    if (const auto failure = exporter.take_failure())
      failed.add(failure->iteration, "export", failure->why);
  };
  const auto show_saves = [&](const std::vector<checkpoint::SaveEvent>& events) {
    for (const checkpoint::SaveEvent& event : events) {
      reporter.save(event);
      if (event.state == checkpoint::SaveEvent::State::kDurable) {
        report.checkpoint = event.folder;
        failed.forget();
        if (c.checkpoint.export_hf && main_rank) exporter.begin(event.folder, event.iteration);
      }
      if (event.state == checkpoint::SaveEvent::State::kFailed)
        failed.add(event.iteration, "checkpoint", event.text);
    }
    check_export();
  };
  StepQueue steps(*s.stepper, *s.loader, s.delayed_scales, s.scaling, s.groups.world(),
                  late_figures);
  const auto account_for = [&](const MadeStep& made) {
    const auto& [iteration, consumed, samples, wait, time_s, options, result] = made;
    const bool overflow = s.scaling.overflowed(result);
    const bool has_loss = result.computed && losses_are_finite(result);
    s.scaling.after_step(iteration, result, samples);
    s.progress.loss = has_loss && (result.finite || overflow) ? result.loss : std::nullopt;
    s.progress.validation_loss.reset();
    s.progress.figures.clear();
    if (overflow) {
      ++s.progress.skipped_iterations;
      s.progress.nan_iterations += !has_loss;
    } else if (!result.finite) {
      ++s.progress.nan_iterations;
      if (c.train.on_nan == OnNan::kStop || ++skipped_in_a_row > c.train.max_skipped_iterations) {
        if (s.saver) show_saves(s.saver->finish());
        failed.tell();
        raise<Error>("iteration {}: {}\n  try: a lower optimizer.lr{}", iteration,
                     nonfinite_text(result),
                     c.train.on_nan == OnNan::kStop ? ", or train.on_nan=skip" : "");
      }
      log::shared_warning("skipped iteration {}: {}", iteration, nonfinite_text(result));
      ++s.progress.skipped_iterations;
    } else if (!result.computed || result.too_large) { // no part of a row of nonfinite steps
      log::shared_warning("skipped iteration {}: {}", iteration, skip_text(result, options));
      ++s.progress.skipped_iterations;
    } else {
      skipped_in_a_row = 0;
      report.trained = true;
      if (result.loss) {
        report.last_loss = result.loss;
        report.last_terms = named_terms(s.model.model->spec(), result.terms);
      }
    }
    reporter.step(
        {.iteration = iteration,
         .consumed_samples = consumed,
         .samples = samples,
         .computed = result.computed,
         .loss = result.loss,
         .terms = all_terms(s.model.model->spec(), result.terms, result.auxiliary),
         .grad_norm = result.grad_norm,
         .logits = result.logits,
         .loss_scale = s.scaling.reported(),
         .experts = layer_loads(s.model.model->spec().expert_layers, result.expert_counts),
         .lr = options.lr,
         .step_time_s = time_s,
         .flops =
             result.computed ? flops.step(samples, result.totals, result.head_rows) : StepFlops{},
         .data_wait = wait,
         .finite = overflow ? has_loss : result.finite,
         .too_large = result.too_large,
         .overflow = overflow,
         .skipped = s.progress.skipped_iterations,
         .nan = s.progress.nan_iterations});
  };
  const auto account = [&] {
    for (const MadeStep& made : steps.take()) account_for(made);
  };
  const auto evaluate = [&] {
    account();
    std::optional<Evaluation> result;
    with_eval_weights(c, *s.optimizer, *s.model.store, [&] {
      result = validate(*s.stepper, s.model.model->spec(), c, s.datasets, s.loader_options(0),
                        s.main_rank);
    });
    report.validation = result;
    s.progress.validation_loss = result ? result->loss : std::nullopt;
    if (!result) return;
    for (const auto& [name, value] : result->figures)
      s.progress.figures["validation_" + name] = value;
    reporter.evaluation(s.progress.iteration, s.progress.consumed_samples, *result);
  };
  const auto try_out = [&](bool last) {
    const int64_t iteration = s.progress.iteration;
    if (!s.tasks->due(iteration, last) && !s.samples->due(iteration, last)) return;
    account();
    with_eval_weights(c, *s.optimizer, *s.model.store, [&] {
      if (s.tasks->due(iteration, last))
        reporter.task_scores(iteration, s.progress.consumed_samples,
                             s.tasks->scores(s.model, *s.tokenizer, s.groups, s.sequence));
      if (s.samples->due(iteration, last))
        reporter.samples(iteration, s.samples->write(s.model, *s.tokenizer, s.sequence));
    });
  };
  if (s.progress.iteration >= s.total_iterations) {
    if (c.train.eval_interval > 0) evaluate();
    try_out(true);
  }

  if (s.progress.iteration < s.total_iterations) // before it is worth an iteration and a save
    report.signal = any_rank({.signal = signal_that_came()}, s.groups.world()).signal;
  if (report.signal != 0) report.reason = StopReason::kSignal;
  while (report.signal == 0 && s.progress.iteration < s.total_iterations) {
    failed.tell();
    const int64_t iteration = s.progress.iteration + 1;
    const int64_t n = length.by_samples()
                          ? s.scaling.scheduled_samples(s.batch_sizes.samples_after(iteration))
                          : s.scaling.scheduled_iterations(iteration);
    const StepOptions options{.lr = lr.at(n),
                              .weight_decay = decay.at(n),
                              .clip_grad = c.optimizer.clip_grad,
                              .grad_norm_skip_threshold = c.optimizer.grad_norm_skip_threshold,
                              .loss_scale = s.scaling.scale(),
                              .check_copies = c.dtype == Precision::kFp16,
                              .seed = c.seed,
                              .times = tracer.begin(iteration)};
    steps.make(iteration, options);
    tracer.end();
    s.progress.iteration = iteration;
    s.progress.consumed_samples = s.loader->consumed_samples();
    const bool last = iteration == s.total_iterations;
    const bool may_hold = // the schedules
        c.optimizer.grad_norm_skip_threshold > 0 || c.train.on_nan == OnNan::kSkip;
    if (steps.has_to_take() || may_hold || last || reporter.prints(iteration)) account();
    ++report.steps;
    memory_peak.after_step();
    if (c.train.eval_interval > 0 && (iteration % c.train.eval_interval == 0 || last)) evaluate();
    try_out(last);
    std::optional<StopReason> stop;
    if (c.train.exit_interval > 0 && iteration % c.train.exit_interval == 0)
      stop = StopReason::kExitInterval;
    const double limit = c.train.exit_duration_in_mins * 60;
    const Between between = any_rank({.signal = signal_that_came(),
                                      .out_of_time = limit > 0 && monotonic_s() - begin > limit,
                                      .saving = s.saver && s.saver->busy(),
                                      .contended = contention.look(monotonic_s())},
                                     s.groups.world());
    contention.tell(between.contended);
    if (between.out_of_time) stop = StopReason::kDuration;
    if (between.signal != 0) stop = StopReason::kSignal;
    report.signal = between.signal;
    const bool due = c.checkpoint.save_interval > 0 && iteration % c.checkpoint.save_interval == 0;
    if (due || stop) account();
    if (last || stop) failed.run_ends(iteration);
    if (s.saver) show_saves(s.saver->advance(between.saving));
    if (s.saver && (due || last || stop)) {
      show_saves(s.saver->finish());
      exporter.wait(); // the new checkpoint may remove the one that it reads
      show_saves(s.save());
    }
    if (stop && !last) {
      report.reason = *stop;
      break;
    }
  }
  if (s.saver) show_saves(s.saver->finish());
  exporter.wait();
  check_export();
  report.unsaved = failed.finish();
  report.iterations = s.progress.iteration;
  tracer.finish();
  return report;
}

} // namespace pentatron::trainer
