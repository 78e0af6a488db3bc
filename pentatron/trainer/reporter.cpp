#include "pentatron/trainer/reporter.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/comm/rank_threads.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/trainer/metrics/loss_plot.h"
#include "pentatron/trainer/metrics/metrics_file.h"
#include "pentatron/trainer/metrics/progress_bar.h"
#include "pentatron/trainer/metrics/tensorboard.h"
#include "pentatron/trainer/metrics/train_log.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

namespace {

/// Means and sums over the steps since the last console line.
struct Interval {
  int64_t steps = 0, counted_losses = 0, samples = 0;
  double loss = 0, time_s = 0, data_wait = 0;
  StepFlops flops;
};

/// The losses that the run had written before it was resumed.
std::vector<PlotPoint> earlier_losses(const fs::path& metrics, int64_t resumed_iteration) {
  std::vector<PlotPoint> points;
  std::ifstream in(metrics);
  for (std::string line; std::getline(in, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("iteration") || !json["iteration"].is_number() ||
        json["iteration"].get<int64_t>() > resumed_iteration)
      break;
    if (json.contains("loss") && json["loss"].is_number())
      points.push_back({json["iteration"].get<double>(), json["loss"].get<double>()});
  }
  return points;
}

} // namespace

struct Reporter::State {
  Config config;
  ReporterOptions options;
  Interval interval;
  LossPlot plot;
  std::optional<MetricsFile> metrics;
  std::optional<TensorBoardWriter> tensorboard;
  std::optional<ProgressBar> bar;
  double mean_step_s = 0;
  double estimated_s = 0; ///< a step of the first three
  bool finished = false;
  std::vector<SaveLog> saves;                   ///< since the last step
  std::map<std::string, std::string> unwritten; ///< of options.files
  std::string trouble;                          ///< with files since the last settle()
  bool failing = false;                         ///< it has been told

  fs::path dir() const;
  /// Runs what writes a file.
  void write(const std::function<void()>& work);
  void write_files();
  /// TensorBoard goes on in another file after one that could not be written.
  void write_tensorboard(int64_t done, const std::function<void(TensorBoardWriter&)>& work);
  void settle();
  void estimate(const StepReport& r);
  TrainLog log_of(const StepReport& r, std::optional<double> loss, double time_s, int64_t samples,
                  const StepFlops& flops) const;
};

/// Empty: no files. A run that is at its end already has its own.
fs::path Reporter::State::dir() const {
  const bool trains = options.resumed_iteration < options.total_iterations;
  return options.main_rank && trains ? fs::path(config.logger.dir) : fs::path();
}

void Reporter::State::write(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (trouble.empty()) trouble = error.what();
  }
}

void Reporter::State::write_files() {
  std::erase_if(unwritten, [this](const auto& file) {
    bool written = false;
    write([&] {
      write_file_atomically(dir() / file.first, file.second);
      written = true;
    });
    return written;
  });
}

void Reporter::State::write_tensorboard(int64_t done,
                                        const std::function<void(TensorBoardWriter&)>& work) {
  if (dir().empty() || !config.logger.tensorboard) return;
  write([&] {
    try {
      if (!tensorboard)
        tensorboard.emplace(dir() / "tensorboard", done > 0 ? std::optional(done) : std::nullopt);
      work(*tensorboard);
    } catch (const DataError&) {
      tensorboard.reset();
      throw;
    }
  });
}

void Reporter::State::settle() {
  if (!trouble.empty() && !failing) log::warning("{}; training goes on without it", trouble);
  if (trouble.empty() && failing)
    log::warning("logger.dir={} can be written again{}", config.logger.dir,
                 metrics && metrics->lost() > 0
                     ? fmt::format("; {} lines of metrics.jsonl are lost", metrics->lost())
                     : "");
  failing = !trouble.empty();
  trouble.clear();
}

Reporter::Reporter(const Config& config, const ReporterOptions& options)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.config = config;
  s.options = options;
  if (!options.main_rank) return;
  s.plot.title = "training loss";
  if (const fs::path dir = s.dir(); !dir.empty()) {
    if (options.resumed_iteration > 0)
      s.plot.training = earlier_losses(dir / "metrics.jsonl", options.resumed_iteration);
    s.unwritten = options.files;
    s.unwritten["config.yaml"] = config::to_yaml(config);
    s.write_files();
    s.metrics.emplace(dir / "metrics.jsonl", options.resumed_iteration);
    s.write([&] { s.metrics->flush(); });
    s.write_tensorboard(options.resumed_iteration, [&](TensorBoardWriter& board) {
      board.text("config", 0, "```yaml\n" + config::to_yaml(config) + "```");
    });
    s.settle();
  }
  if (options.peak) {
    log::info("MFU is measured against {:.3f} TFLOP/s: {}", options.peak->flops / 1e12,
              options.peak->source);
  } else {
    log::info("MFU is not shown: the peak of this device is not known; give logger.peak_tflops");
  }
  s.bar.emplace(stderr, "training", options.total_iterations,
                options.progress_bar ? ProgressBar::Mode::kAuto : ProgressBar::Mode::kPlain);
}

Reporter::~Reporter() = default;

void Reporter::set_reference(double loss) {
  state_->plot.reference = loss;
}

TrainLog Reporter::State::log_of(const StepReport& r, std::optional<double> loss, double time_s,
                                 int64_t samples, const StepFlops& flops) const {
  TrainLog log;
  const double devices = static_cast<double>(options.world_size);
  log.time = std::chrono::system_clock::now();
  log.iteration = r.iteration;
  log.train_iters = options.total_iterations;
  log.consumed_samples = r.consumed_samples;
  log.step_time_s = time_s;
  log.tflops = flops.model / time_s / 1e12 / devices;
  log.learning_rate = r.lr;
  log.global_batch_size = r.samples;
  if (loss) log.losses = {{"lm loss", *loss}};
  log.grad_norm = r.grad_norm;
  log.skipped_iterations = r.skipped;
  log.nan_iterations = r.nan;
  log.tokens_per_s = static_cast<double>(samples * options.tokens_per_sample) / time_s;
  log.mfu = utilization(flops.model, time_s, options.peak, options.world_size);
  log.hfu = utilization(flops.hardware, time_s, options.peak, options.world_size);
  log.memory_bytes = nn::memory_snapshot(comm::current_rank()).total.peak_bytes;
  log.data_wait = r.data_wait;
  log.eta_s = mean_step_s * static_cast<double>(options.total_iterations - r.iteration);
  log.world_size = options.world_size;
  return log;
}

/// Says once how long the run will take. The first step is left out: it makes what the others find.
void Reporter::State::estimate(const StepReport& r) {
  const int64_t made = r.iteration - options.resumed_iteration;
  const int64_t left = options.total_iterations - r.iteration;
  if (made == 2 || made == 3) estimated_s += r.step_time_s / 2;
  if (made == 3 && left > 0)
    log::info("{} for an iteration: {} for the {} iterations that are left, without evaluation and "
              "saving",
              format_duration(estimated_s),
              format_duration(estimated_s * static_cast<double>(left)), format_grouped(left));
}

void Reporter::step(const StepReport& r) {
  State& s = *state_;
  if (!s.options.main_rank) return;
  s.mean_step_s = s.mean_step_s == 0 ? r.step_time_s : 0.9 * s.mean_step_s + 0.1 * r.step_time_s;
  s.estimate(r);
  TrainLog one = s.log_of(r, r.loss, r.step_time_s, r.samples, r.flops);
  one.nan_iterations = r.finite ? 0 : 1; // of this step, not of the run
  one.skipped_iterations = r.finite && r.loss ? 0 : 1;
  one.saves = std::exchange(s.saves, {});
  s.write_files();
  if (s.metrics) s.write([&] { s.metrics->write(one); });
  s.write_tensorboard(r.iteration - 1, [&](TensorBoardWriter& board) { board.training(one); });
  s.settle();
  if (r.loss) s.plot.training.push_back({static_cast<double>(r.iteration), *r.loss});

  Interval& i = s.interval;
  ++i.steps;
  i.samples += r.samples;
  if (r.finite && r.loss) {
    ++i.counted_losses;
    i.loss += *r.loss;
  }
  i.time_s += r.step_time_s;
  i.flops.model += r.flops.model;
  i.flops.hardware += r.flops.hardware;
  if (r.iteration == 1 || r.iteration % s.config.logger.log_interval == 0 ||
      r.iteration == s.options.total_iterations) {
    const double n = static_cast<double>(i.steps);
    StepFlops mean{i.flops.model / n, i.flops.hardware / n};
    // Skipped steps do not spoil the mean of the others.
    const std::optional<double> loss =
        i.counted_losses > 0 ? std::optional(i.loss / static_cast<double>(i.counted_losses))
                             : r.loss;
    TrainLog line = s.log_of(r, loss, i.time_s / n, i.samples, mean);
    line.tokens_per_s = static_cast<double>(i.samples * s.options.tokens_per_sample) / i.time_s;
    s.bar->print(train_line(line));
    i = {};
  }
  s.bar->update(r.iteration,
                fmt::format("{}  {}  ETA {}",
                            r.loss ? fmt::format("loss {:.4f}", *r.loss) : "no targets",
                            one.mfu ? fmt::format("MFU {:.1f} %", *one.mfu * 100) : std::string(),
                            clock_text(*one.eta_s)));
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
      log::info("iteration {}: waited {} for the checkpoint before this one", e.iteration,
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
    if (!e.text.empty()) log::warning("older checkpoints are still there: {}", e.text);
    break;
  case Kind::kFailed:
    name = "failed";
    log::error("the checkpoint of iteration {} was not saved, earlier ones are as they were: {}",
               e.iteration, e.text);
    break;
  }
  s.saves.push_back({.iteration = e.iteration,
                     .state = name,
                     .seconds = e.seconds,
                     .bytes = static_cast<int64_t>(e.bytes)});
}

void Reporter::evaluation(int64_t iteration, int64_t consumed_samples, double loss) {
  State& s = *state_;
  if (!s.options.main_rank) return;
  s.plot.validation.push_back({static_cast<double>(iteration), loss});
  s.write_tensorboard(iteration, [&](TensorBoardWriter& board) {
    board.evaluation("lm loss", "validation", iteration, consumed_samples, loss);
  });
  s.bar->print(evaluation_box(fmt::format("validation loss at iteration {}", iteration),
                              {{"lm loss", loss}}));
}

void Reporter::finish() {
  State& s = *state_;
  if (!s.options.main_rank || s.finished) return;
  s.finished = true;
  if (s.bar) s.bar->clear();
  if (s.metrics) s.write([&] { s.metrics->flush(); });
  if (s.tensorboard) s.write([&] { s.tensorboard->flush(); });
  if (!plot_path().empty() && !s.plot.training.empty())
    s.write([&] { write_file_atomically(plot_path(), loss_svg(s.plot)); });
  s.settle();
}

fs::path Reporter::metrics_path() const {
  return state_->metrics ? state_->metrics->path() : fs::path();
}

fs::path Reporter::plot_path() const {
  const fs::path dir = state_->dir();
  return !dir.empty() && state_->config.logger.plot ? dir / "loss.svg" : fs::path();
}

} // namespace pentatron::trainer
