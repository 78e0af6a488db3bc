#include "pentatron/trainer/reporter.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/progress.h"
#include "pentatron/comm/rank_threads.h"
#include "pentatron/nn/memory/device_memory.h"
#include "pentatron/plot/load_plot.h"
#include "pentatron/plot/loss_plot.h"
#include "pentatron/plot/metrics_text.h"
#include "pentatron/trainer/metrics/metrics_file.h"
#include "pentatron/trainer/metrics/mlflow.h"
#include "pentatron/trainer/metrics/sample_text.h"
#include "pentatron/trainer/metrics/tensorboard.h"
#include "pentatron/trainer/metrics/train_log.h"
#include "pentatron/trainer/metrics/wandb.h"
#include "pentatron/trainer/remedy_of_dead_experts.h"
#include "pentatron/trainer/run_files.h"
#include "pentatron/trainer/run_identity.h"
#include "pentatron/trainer/run_summary.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

namespace {

/// Means and sums over the steps since the last console line.
struct Interval {
  int64_t steps = 0, counted_losses = 0;
  double loss = 0, time_s = 0;
  int64_t trained_samples = 0; ///< of the steps with targets, and their time
  double trained_s = 0;
  std::map<std::string, std::pair<double, int64_t>> terms; ///< sums and numbers of steps
  StepFlops flops;
};

/// loss.svg and run.json are written anew at most this often, and take less than a hundredth of the
/// time.
constexpr double kRedrawSeconds = 5, kRedrawShare = 0.01;

/// Empty if it does not exist.
fs::path existing(const fs::path& file) {
  std::error_code error;
  return fs::exists(file, error) ? file : fs::path();
}

MlflowWriter::End mlflow_end(const std::string& exit_reason) {
  if (exit_reason.starts_with("error")) return MlflowWriter::End::kFailed;
  return exit_reason.starts_with("signal") ? MlflowWriter::End::kKilled
                                           : MlflowWriter::End::kFinished;
}

} // namespace

struct Reporter::State {
  Config config;
  ReporterOptions options;
  Interval interval;
  plot::LossPlot plot;
  std::optional<ExpertWatch> experts;
  RunSummary summary;
  std::optional<MetricsFile> metrics, samples;
  std::unique_ptr<TensorBoardWriter> tensorboard;
  std::unique_ptr<WandbWriter> wandb;
  std::unique_ptr<MlflowWriter> mlflow;
  std::optional<Progress> bar;
  bool forced_terminal = false;
  double next_redraw_s = monotonic_s() + kRedrawSeconds;
  double mean_step_s = 0;
  std::vector<double> first_s; ///< of steps, to estimate the rest
  bool finished = false;
  std::vector<SaveLog> saves;                   ///< since the last step
  std::map<std::string, std::string> unwritten; ///< of options.files
  std::map<std::string, std::string> failing;   ///< outputs that cannot be written now, and why
  std::set<std::string> told;                   ///< those of them that a warning has named
  std::set<std::string> incomplete;             ///< outputs that have lost something for good

  fs::path dir() const;
  /// Runs what writes the output `name`.
  void write(const std::string& name, const std::function<void()>& work);
  void write_metrics(const std::function<void(MetricsFile&)>& work);
  std::vector<std::string> unfinished() const;
  void write_files();
  void read_earlier(const fs::path& file);
  /// A writer whose file could not be written is replaced by another one, which continues after
  /// iteration `done`.
  template <class Writer>
  void use(const std::string& name, std::unique_ptr<Writer>& writer,
           const std::function<std::unique_ptr<Writer>()>& open,
           const std::function<void(Writer&)>& work);
  void write_tensorboard(int64_t done, const std::function<void(TensorBoardWriter&)>& work);
  void track(int64_t done, int64_t iteration, const TrackedValues& values);
  void redraw(bool now);
  void settle();
  void print(const std::string& compact, const std::string& megatron) const;
  int64_t tokens(int64_t samples) const { return samples * options.tokens_per_sample; }
  void estimate(const StepReport& r);
  TrainLog log_of(const StepReport& r, std::optional<double> loss, const Scores& terms,
                  double time_s, int64_t samples, const StepFlops& flops) const;
};

/// Empty: no files. A run that is at its end already has its own.
fs::path Reporter::State::dir() const {
  const bool trains = options.resumed_iteration < options.total_iterations;
  return options.main_rank && trains ? fs::path(config.logger.dir) : fs::path();
}

void Reporter::State::write(const std::string& name, const std::function<void()>& work) {
  try {
    work();
    failing.erase(name);
  } catch (const std::exception& error) {
    failing.emplace(name, error.what());
  }
}

void Reporter::State::write_metrics(const std::function<void(MetricsFile&)>& work) {
  if (metrics) write(kMetricsFile, [&] { work(*metrics); });
  if (metrics && metrics->lost() > 0) incomplete.insert(kMetricsFile);
}

void Reporter::State::write_files() {
  std::erase_if(unwritten, [this](const auto& file) {
    write(file.first, [&] { write_file_atomically(dir() / file.first, file.second); });
    return !failing.contains(file.first);
  });
}

template <class Writer>
void Reporter::State::use(const std::string& name, std::unique_ptr<Writer>& writer,
                          const std::function<std::unique_ptr<Writer>()>& open,
                          const std::function<void(Writer&)>& work) {
  write(name, [&] {
    try {
      if (!writer) writer = open();
      work(*writer);
    } catch (const std::exception&) {
      writer.reset();
      incomplete.insert(name);
      throw;
    }
  });
}

void Reporter::State::write_tensorboard(int64_t done,
                                        const std::function<void(TensorBoardWriter&)>& work) {
  if (dir().empty() || !config.logger.tensorboard) return;
  use<TensorBoardWriter>(
      kTensorBoardFolder, tensorboard,
      [&] {
        return std::make_unique<TensorBoardWriter>(dir() / kTensorBoardFolder,
                                                   done > 0 ? std::optional(done) : std::nullopt);
      },
      work);
}

void Reporter::State::track(int64_t done, int64_t iteration, const TrackedValues& values) {
  if (dir().empty()) return;
  const LoggerConfig& logger = config.logger;
  if (!logger.wandb_project.empty())
    use<WandbWriter>(
        kWandbFolder, wandb,
        [&] {
          return std::make_unique<WandbWriter>(
              dir(), tracked_run(config, summary.id, logger.wandb_project, done));
        },
        [&](WandbWriter& writer) {
          if (!values.empty()) writer.log(iteration, values);
        });
  if (!logger.mlflow_experiment.empty())
    use<MlflowWriter>(
        kMlflowFolder, mlflow,
        [&] {
          const auto open = [&](const fs::path& store) {
            return std::make_unique<MlflowWriter>(
                store, tracked_run(config, summary.id, logger.mlflow_experiment, done));
          };
          if (logger.mlflow_dir.empty()) return open(dir() / kMlflowFolder);
          return naming(
              "logger.mlflow_dir=", logger.mlflow_dir, [&] { return open(logger.mlflow_dir); },
              "another logger.mlflow_dir");
        },
        [&](MlflowWriter& writer) { writer.log(iteration, values); });
}

/// What the run had written before it was resumed.
void Reporter::State::read_earlier(const fs::path& file) {
  plot::MetricsText earlier;
  try {
    const MappedFile mapped(file);
    earlier = plot::parse_metrics(mapped.text(), options.resumed_iteration);
  } catch (const DataError&) { // nothing was written
  }
  for (const plot::MetricsPoint& p : earlier.points) {
    const auto x = static_cast<double>(p.iteration);
    if (p.training && p.step_time_s && p.tokens_per_s) {
      summary.training_seconds += *p.step_time_s;
      summary.timed_tokens += *p.step_time_s * *p.tokens_per_s;
    }
    if (p.loss) plot.training.push_back({x, *p.loss});
    if (p.validation_loss) plot.validation.push_back({x, *p.validation_loss});
    if (p.loss) summary.add_loss(p.iteration, *p.loss);
    if (p.validation_loss) summary.add_validation_loss(p.iteration, *p.validation_loss);
  }
}

void Reporter::State::redraw(bool now) {
  const double begin = monotonic_s();
  if (dir().empty() || (!now && begin < next_redraw_s)) return;
  write(kSummaryFile,
        [&] { write_file_atomically(dir() / kSummaryFile, run_summary_json(summary)); });
  if (config.logger.plot && !(plot.training.empty() && plot.validation.empty()))
    write(kLossPlotFile,
          [&] { write_file_atomically(dir() / kLossPlotFile, plot::loss_svg(plot)); });
  if (config.logger.plot && experts && experts->last() > 0)
    write(kExpertPlotFile, [&] {
      const plot::LoadPlot loads{.title = fmt::format("load of experts, iterations {} to {}",
                                                      experts->first(), experts->last()),
                                 .layers = experts->layers(),
                                 .loads = experts->loads()};
      write_file_atomically(dir() / kExpertPlotFile, plot::load_svg(loads));
    });
  const double end = monotonic_s();
  next_redraw_s = end + std::max(kRedrawSeconds, (end - begin) / kRedrawShare);
}

void Reporter::State::print(const std::string& compact, const std::string& megatron) const {
  log::print(config.logger.format == LineFormat::kMegatron ? megatron : compact);
}

/// Outputs that miss something.
std::vector<std::string> Reporter::State::unfinished() const {
  std::set<std::string> names = incomplete;
  for (const auto& [name, why] : failing) names.insert(name);
  return {names.begin(), names.end()};
}

void Reporter::State::settle() {
  const bool first = told.empty();
  if (first && !failing.empty()) redraw(/*now=*/true); // so that one message names them all
  std::vector<std::string> fresh;
  for (const auto& [name, why] : failing)
    if (told.insert(name).second) fresh.push_back(name);
  if (!fresh.empty()) {
    const MessageParts parts = parts_of(failing.at(fresh[0]));
    log::warning("{}; {}{} {} incomplete{}{}{}", parts.sentence,
                 first ? "training continues, and " : "", fmt::join(fresh, ", "),
                 fresh.size() == 1 ? "is" : "are", first ? "" : " too",
                 parts.remedy.empty() ? "" : "\n  try: ", parts.remedy);
  }
  if (!failing.empty() || told.empty()) return;
  told.clear();
  log::warning("logger.dir={} can be written again{}", config.logger.dir,
               incomplete.empty() ? ""
                                  : fmt::format("; the data lost in the meantime is missing in {}",
                                                fmt::join(incomplete, ", ")));
}

Reporter::Reporter(const Config& config, const ReporterOptions& options)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.config = config;
  s.options = options;
  if (!options.main_rank) return;
  s.plot.title = "training loss";
  if (!options.expert_layers.empty())
    s.experts.emplace(options.expert_layers, config.logger.dead_expert_steps);
  if (const fs::path dir = s.dir(); !dir.empty()) {
    RunSummary& summary = s.summary;
    summary.name = name_of_run(config.logger);
    if (options.resumed_iteration > 0) {
      s.read_earlier(dir / kMetricsFile);
      summary.id = earlier_run_id(dir / kSummaryFile);
    }
    if (summary.id.empty()) summary.id = new_run_id();
    summary.started = utc_timestamp();
    summary.started_from = options.started_from;
    summary.config_hash = hash_of_config(config, options.started_from);
    summary.version = options.version;
    summary.torch_version = options.torch_version;
    summary.device = options.device;
    summary.layout = options.layout;
    summary.ranks = options.world_size;
    summary.resumed_iteration = summary.iteration = options.resumed_iteration;
    summary.consumed_samples = options.resumed_samples;
    summary.consumed_tokens = s.tokens(options.resumed_samples);
    summary.total_iterations = options.total_iterations;
    s.unwritten[kSummaryFile] = run_summary_json(summary);
    s.unwritten.insert(options.files.begin(), options.files.end());
    s.unwritten[kConfigFile] = config::to_yaml(config);
    // The first file: with it alone, a folder is known to be of a run that has not begun.
    s.metrics.emplace(dir / kMetricsFile, options.resumed_iteration);
    if (!config.logger.sample_prompts.empty())
      s.samples.emplace(dir / kSamplesFile, options.resumed_iteration);
    s.write_metrics([](MetricsFile& metrics) { metrics.flush(); });
    s.write_files();
    s.write_tensorboard(options.resumed_iteration, [&](TensorBoardWriter& board) {
      board.text("config", 0, "```yaml\n" + config::to_yaml(config) + "```");
    });
    s.track(options.resumed_iteration, options.resumed_iteration, {});
    s.settle();
  }
  tell_peak(options.peak);
  s.forced_terminal = config.logger.progress == ProgressBar::kOn && !log::is_terminal();
  if (s.forced_terminal) log::set_output(stderr, /*terminal=*/true);
  const bool draw = config.logger.progress == ProgressBar::kOn ||
                    (config.logger.progress == ProgressBar::kAuto && options.progress_bar);
  s.bar.emplace("training", options.total_iterations,
                Progress::Options{.line_every_s = 0, .draw = draw});
  s.bar->update(options.resumed_iteration);
}

Reporter::~Reporter() {
  if (state_->bar) state_->bar->clear();
  if (state_->forced_terminal) log::set_output(stderr, /*terminal=*/false);
}

void Reporter::set_reference(double loss) {
  state_->plot.reference = loss;
}

TrainLog Reporter::State::log_of(const StepReport& r, std::optional<double> loss,
                                 const Scores& terms, double time_s, int64_t samples,
                                 const StepFlops& flops) const {
  TrainLog log;
  log.time = std::chrono::system_clock::now();
  log.iteration = r.iteration;
  log.train_iters = options.total_iterations;
  log.consumed_samples = r.consumed_samples;
  log.consumed_tokens = tokens(r.consumed_samples);
  log.step_time_s = time_s;
  log.learning_rate = r.lr;
  log.global_batch_size = r.samples;
  if (r.computed || loss) log.losses = {{options.loss_name, loss}};
  log.losses.insert(log.losses.end(), terms.begin(), terms.end());
  log.grad_norm = r.grad_norm;
  log.logits = r.logits;
  log.loss_scale = r.loss_scale;
  log.skipped_iterations = r.skipped;
  log.nan_iterations = r.nan;
  if (flops.model > 0) { // a step without targets computes nothing
    log.tokens_per_s = static_cast<double>(tokens(samples)) / time_s;
    log.tflops = flops.model / time_s / 1e12 / static_cast<double>(options.world_size);
    log.mfu = utilization(flops.model, time_s, options.peak, options.world_size);
    log.hfu = utilization(flops.hardware, time_s, options.peak, options.world_size);
  }
  log.memory_bytes = nn::peak_memory_bytes(options.memory_device, comm::current_rank());
  log.data_wait = r.data_wait;
  log.eta_s = mean_step_s * static_cast<double>(options.total_iterations - r.iteration);
  log.world_size = options.world_size;
  log.experts = r.experts;
  return log;
}

/// Says once how long the run will take, without the first step, which makes what others find.
void Reporter::State::estimate(const StepReport& r) {
  const int64_t left = options.total_iterations - r.iteration;
  if (!r.computed || first_s.size() == 3) return;
  if (first_s.push_back(r.step_time_s); first_s.size() < 3 || left == 0) return;
  const double step_s = (first_s[1] + first_s[2]) / 2;
  log::info("one iteration takes {}; the remaining {} {} {}, without evaluation and saving",
            format_duration(step_s), format_grouped(left),
            noun_for(left, "iteration takes", "iterations take"),
            format_duration(step_s * static_cast<double>(left)));
}

bool Reporter::prints(int64_t iteration) const {
  return iteration == 1 || iteration % state_->config.logger.log_interval == 0 ||
         iteration == state_->options.total_iterations;
}

void Reporter::step(const StepReport& r) {
  State& s = *state_;
  if (!s.options.main_rank) return;
  if (r.computed)
    s.mean_step_s = s.mean_step_s == 0 ? r.step_time_s : 0.9 * s.mean_step_s + 0.1 * r.step_time_s;
  s.estimate(r);
  TrainLog one = s.log_of(r, r.loss, r.terms, r.step_time_s, r.samples, r.flops);
  one.nan_iterations = r.finite ? 0 : 1; // of this step, not of the run
  one.skipped_iterations = r.finite && r.computed && !r.too_large && !r.overflow ? 0 : 1;
  one.saves = std::exchange(s.saves, {});
  s.write_files();
  s.write_metrics([&](MetricsFile& metrics) { metrics.write(one); });
  s.write_tensorboard(r.iteration - 1, [&](TensorBoardWriter& board) { board.training(one); });
  s.track(r.iteration - 1, r.iteration, tracked_values(one));
  if (s.experts)
    for (const std::string& sentence : s.experts->step(r.iteration, r.experts))
      log::warning("{}\n  try: {}", sentence, remedy_of_dead_experts(s.config.model));
  s.summary.iteration = r.iteration;
  s.summary.consumed_samples = r.consumed_samples;
  s.summary.consumed_tokens = s.tokens(r.consumed_samples);
  if (r.computed) {
    s.summary.training_seconds += r.step_time_s;
    s.summary.timed_tokens += static_cast<double>(s.tokens(r.samples));
  }
  s.summary.skipped_iterations = r.skipped;
  s.summary.nan_iterations = r.nan;
  if (r.loss) s.plot.training.push_back({static_cast<double>(r.iteration), *r.loss});
  if (r.loss) s.summary.add_loss(r.iteration, *r.loss);
  s.redraw(/*now=*/false);
  s.settle();

  Interval& i = s.interval;
  ++i.steps;
  i.time_s += r.step_time_s;
  if (r.computed) {
    i.trained_samples += r.samples;
    i.trained_s += r.step_time_s;
  }
  if (r.finite && r.computed && !r.overflow) {
    if (r.loss) {
      ++i.counted_losses;
      i.loss += *r.loss;
    }
    for (const auto& [name, value] : r.terms) {
      i.terms[name].first += value;
      ++i.terms[name].second;
    }
  }
  i.flops.model += r.flops.model;
  i.flops.hardware += r.flops.hardware;
  if (prints(r.iteration)) {
    const double n = static_cast<double>(i.steps);
    StepFlops mean{i.flops.model / n, i.flops.hardware / n};
    // Skipped steps do not spoil the mean of the others.
    const std::optional<double> loss =
        i.counted_losses > 0 ? std::optional(i.loss / static_cast<double>(i.counted_losses))
                             : r.loss;
    Scores terms;
    for (const auto& [name, value] : r.terms) {
      const auto& [sum, steps] = i.terms[name];
      terms.emplace_back(name, steps > 0 ? sum / static_cast<double>(steps) : value);
    }
    TrainLog line = s.log_of(r, loss, terms, i.time_s / n, r.samples, mean);
    if (i.trained_s > 0)
      line.tokens_per_s = static_cast<double>(s.tokens(i.trained_samples)) / i.trained_s;
    const auto columns = static_cast<size_t>(std::clamp(log::console_width(), 1, 120));
    s.print(compact_line(line, log::is_terminal() ? columns : kLineColumns), train_line(line));
    i = {};
  }
  const std::string text = loss_text(r.loss, r.computed);
  s.bar->update(r.iteration, fmt::format("{} ETA {}", text, short_duration(*one.eta_s)));
}

void Reporter::save(const checkpoint::SaveEvent& e) {
  using Kind = checkpoint::SaveEvent::State;
  State& s = *state_;
  if (!s.options.main_rank) return;
  const std::string size = format_bytes(static_cast<double>(e.bytes));
  const char* name = "";
  switch (e.state) {
  case Kind::kQueued:
    name = "queued";
    if (e.waited_s > 0.01)
      log::info("iteration {}: waited {} for the previous checkpoint", e.iteration,
                format_duration(e.waited_s));
    log::info("checkpoint of iteration {} queued: training waited {} for {}{}{}", e.iteration,
              format_duration(e.seconds), size, e.text.empty() ? "" : "; ", e.text);
    break;
  case Kind::kWritten:
    name = "written";
    if (s.config.checkpoint.async_save)
      log::info("checkpoint of iteration {} written after {} ({})", e.iteration,
                format_duration(e.seconds), size);
    break;
  case Kind::kDurable:
    name = "durable";
    log::info("saved {} ({}, durable after {})", e.folder.string(), size,
              format_duration(e.seconds));
    if (!e.text.empty()) log::warning("older checkpoints could not be removed: {}", e.text);
    break;
  case Kind::kFailed:
    name = "failed";
    break;
  }
  s.saves.push_back({.iteration = e.iteration,
                     .state = name,
                     .seconds = e.seconds,
                     .bytes = static_cast<int64_t>(e.bytes)});
}

void Reporter::evaluation(int64_t iteration, int64_t consumed_samples, const Evaluation& result) {
  State& s = *state_;
  if (!s.options.main_rank) return;
  if (result.loss) {
    s.plot.validation.push_back({static_cast<double>(iteration), *result.loss});
    s.summary.add_validation_loss(iteration, *result.loss);
  }
  s.write_metrics([&](MetricsFile& metrics) {
    metrics.write(evaluation_line(iteration, result.loss, result.figures, consumed_samples,
                                  s.tokens(consumed_samples)));
  });
  s.write_tensorboard(iteration, [&](TensorBoardWriter& board) {
    if (result.loss)
      board.evaluation(s.options.loss_name, "validation", iteration, consumed_samples,
                       *result.loss);
    for (const auto& [name, value] : result.figures)
      board.figure(name, "validation", iteration, value);
  });
  TrackedValues tracked;
  if (result.loss) tracked.emplace_back("validation_loss", *result.loss);
  for (const auto& [name, value] : result.figures)
    tracked.emplace_back("validation_" + name, value);
  s.track(iteration, iteration, tracked);
  s.redraw(/*now=*/false);
  s.settle();
  s.print(compact_evaluation(iteration, s.options.total_iterations, result.loss, result.figures),
          evaluation_box(fmt::format("validation loss at iteration {}", iteration),
                         s.options.loss_name, result.loss));
}

void Reporter::task_scores(int64_t iteration, int64_t consumed_samples, const TaskFigures& scores) {
  State& s = *state_;
  if (!s.options.main_rank) return;
  s.write_metrics([&](MetricsFile& metrics) {
    metrics.write(
        task_line(iteration, scores.metrics, consumed_samples, s.tokens(consumed_samples)));
  });
  s.write_tensorboard(iteration, [&](TensorBoardWriter& board) {
    for (const auto& [tag, value] : scores.tags) board.scalar(tag, iteration, value);
  });
  s.track(iteration, iteration, {scores.metrics.begin(), scores.metrics.end()});
  s.settle();
  const std::string line = fmt::format("tasks at iteration {}{}", iteration, scores.shown);
  s.print(line, line);
}

void Reporter::samples(int64_t iteration, const std::vector<WrittenSample>& written) {
  State& s = *state_;
  if (!s.options.main_rank) return;
  for (size_t i = 0; i < written.size(); ++i) {
    const auto& [prompt, text] = written[i];
    const std::string line = sample_line(iteration, i, prompt, text);
    if (s.samples) s.write(kSamplesFile, [&] { s.samples->write(line); });
    s.write_tensorboard(iteration, [&](TensorBoardWriter& board) {
      board.text(fmt::format("samples/{}", i), iteration, sample_markdown(prompt, text));
    });
    const std::string shown =
        fmt::format("sample at iteration {}: {}", iteration, sample_text(prompt, text));
    s.print(shown, shown);
  }
  s.settle();
}

void Reporter::finish(const std::string& exit_reason) {
  State& s = *state_;
  if (!s.options.main_rank || s.finished) return;
  s.finished = true;
  if (s.bar) s.bar->clear();
  s.summary.exit_reason = exit_reason;
  s.summary.ended = utc_timestamp();
  s.unwritten.erase(kSummaryFile);
  s.write_files();
  s.write_metrics([](MetricsFile& metrics) { metrics.flush(); });
  if (s.tensorboard) s.write(kTensorBoardFolder, [&] { s.tensorboard->flush(); });
  if (s.wandb)
    s.write(kWandbFolder, [&] { s.wandb->finish(exit_reason.starts_with("error") ? 1 : 0); });
  if (s.mlflow) s.write(kMlflowFolder, [&] { s.mlflow->finish(mlflow_end(exit_reason)); });
  s.redraw(/*now=*/true);
  const std::vector<std::string> names = s.unfinished();
  if (names.empty()) return s.settle();
  log::warning(
      "the run ends with incomplete files in {}: {}{}", s.config.logger.dir, fmt::join(names, ", "),
      s.failing.empty() ? "" : fmt::format("; {}", parts_of(s.failing.begin()->second).sentence));
}

fs::path Reporter::metrics_path() const {
  return state_->metrics ? existing(state_->metrics->path()) : fs::path();
}

fs::path Reporter::plot_path() const {
  const fs::path dir = state_->dir();
  return !dir.empty() && state_->config.logger.plot ? existing(dir / kLossPlotFile) : fs::path();
}

} // namespace pentatron::trainer
