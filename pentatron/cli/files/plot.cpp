#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/text.h"
#include "pentatron/cli/files/file_verbs.h"
#include "pentatron/plot/curves_plot.h"
#include "pentatron/plot/metrics_text.h"

namespace pentatron::cli {

namespace {

namespace fs = std::filesystem;

const std::map<std::string, plot::XAxis> kXAxes = {
    {"steps", plot::XAxis::kSteps}, {"tokens", plot::XAxis::kTokens}, {"time", plot::XAxis::kTime}};
const std::map<std::string, plot::YAxis> kYAxes = {
    {"loss", plot::YAxis::kLoss},
    {"grad_norm", plot::YAxis::kGradNorm},
    {"tokens_per_second", plot::YAxis::kTokensPerSecond},
    {"mfu", plot::YAxis::kMfu},
    {"lr", plot::YAxis::kLearningRate}};

std::string figure_names() {
  std::vector<std::string> names = plot::expert_figures();
  for (const auto& [name, axis] : kYAxes) names.push_back(name);
  return fmt::format("{{{}}}", fmt::join(names, ","));
}

struct PlotArguments {
  std::vector<std::string> runs;
  std::string output = "plot.svg", title, x = "steps", y = "loss";
  std::optional<double> smooth;
  bool log_x = false, log_y = false, overwrite = false;
};

/// metrics.jsonl of a run: that file, or the folder that contains it.
fs::path metrics_of(const std::string& run) {
  std::error_code error;
  if (!fs::is_directory(run, error)) {
    if (fs::exists(run, error)) return run;
    raise<DataError>("{} does not exist\n  try: the logger.dir of a run, or its metrics.jsonl",
                     run);
  }
  if (fs::exists(fs::path(run) / "metrics.jsonl", error)) return fs::path(run) / "metrics.jsonl";
  raise<DataError>("{} contains no metrics.jsonl\n  try: the logger.dir of a run", run);
}

/// The folder's name, or all of the path where two runs would have the same name.
std::vector<std::string> names_of(const std::vector<fs::path>& files) {
  std::vector<std::string> names;
  std::map<std::string, int> count;
  const auto folder_of = [](const fs::path& file) {
    std::error_code error;
    const fs::path folder = fs::absolute(file, error).lexically_normal().parent_path();
    return file.filename() == "metrics.jsonl" ? folder : folder / file.filename();
  };
  for (const fs::path& file : files) ++count[folder_of(file).filename().string()];
  for (const fs::path& file : files) {
    const std::string name = folder_of(file).filename().string();
    names.push_back(count[name] == 1                     ? name
                    : file.filename() == "metrics.jsonl" ? file.parent_path().string()
                                                         : file.string());
  }
  return names;
}

void check_output(const PlotArguments& a) {
  std::error_code error;
  if (fs::is_directory(a.output, error))
    raise<ConfigError>("{} is a folder\n  try: --output {}", a.output,
                       shell_word((fs::path(a.output) / "plot.svg").string()));
  const std::string extension = fs::path(a.output).extension().string();
  for (const char* other : {".png", ".pdf", ".jpg", ".jpeg", ".eps", ".gif", ".webp"})
    if (extension == other)
      raise<ConfigError>("--output {} is not supported: plots are SVG files\n  try: --output {}",
                         a.output,
                         shell_word(fs::path(a.output).replace_extension(".svg").string()));
  require_output(a.output, "--output");
  if (!a.overwrite) return refuse_existing(std::array{fs::path(a.output)});
  check_replaced(a.output, {}, "--output", "a plot", [](const fs::path& file) {
    std::ifstream in(file);
    std::string begin(5, '\0');
    in.read(begin.data(), std::ssize(begin));
    return in.gcount() == 0 || begin.starts_with("<svg") || begin == "<?xml";
  });
}

int run_plot(const PlotArguments& a) {
  check_output(a);
  if (a.smooth && std::isnan(*a.smooth))
    throw ConfigError("--smooth nan is not a number from 0 to 1e9\n  try: --smooth 0");
  std::vector<fs::path> files, seen;
  for (const std::string& run : a.runs) {
    fs::path file = fs::weakly_canonical(metrics_of(run));
    const bool again = std::ranges::find(seen, file) != seen.end();
    if (again) log::warning("{} is given twice, but drawn once", run);
    if (!again) files.push_back(metrics_of(run));
    seen.push_back(std::move(file));
  }
  const std::vector<std::string> names = names_of(files);
  const auto known = kYAxes.find(a.y);
  const plot::YAxis y = known == kYAxes.end() ? plot::YAxis::kFigure : known->second;
  const std::string figure = known == kYAxes.end() ? a.y : "";
  std::vector<plot::NamedMetrics> runs;
  size_t most = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string file = files[i].string();
    runs.push_back({names[i], naming(
                                  "", file, [&] { return plot::read_metrics(file, figure); },
                                  "the logger.dir of a run that has made a step")});
    most = std::max(most, runs.back().points.size());
  }
  plot::CurvesPlot picture = plot::make_curves(runs, kXAxes.at(a.x), y, figure);
  if (!a.title.empty()) picture.title = a.title;
  picture.smooth = a.smooth.value_or(std::max(1.0, static_cast<double>(most) / 40));
  picture.log_x = a.log_x;
  picture.log_y = a.log_y;
  naming(
      "--output ", a.output,
      [&] { write_file_atomically(behind_links(a.output), plot::curves_svg(picture)); },
      "another --output");
  fmt::print("{}: {} of {}\n", a.output, picture.title, counted(std::ssize(runs), "run"));
  return 0;
}

} // namespace

void add_plot(CLI::App& program, Action& chosen) {
  auto a = std::make_shared<PlotArguments>();
  CLI::App* verb =
      program.add_subcommand("plot", "draw the metrics of one or several runs as an SVG picture");
  verb->add_option("runs", a->runs, "runs to draw: folders (logger.dir) or metrics.jsonl files")
      ->required();
  verb->add_option("--output", a->output, "file to write")->capture_default_str();
  verb->add_option("--x", a->x,
                   "horizontal axis: steps (iterations), tokens, or time (training time without "
                   "evaluation and saving)")
      ->check(CLI::IsMember({"steps", "tokens", "time"}))
      ->capture_default_str();
  verb->add_option(
          "--y", a->y,
          "vertical axis: loss (training and validation), grad_norm, tokens_per_second, mfu, lr, "
          "any number in metrics.jsonl, such as z_loss or validation_accuracy, or, for experts, "
          "expert_max_load, expert_entropy, expert_unused or expert_dropped")
      ->type_name(figure_names()) // for completion
      ->capture_default_str();
  verb->add_option("--smooth", a->smooth,
                   "number of steps to average over, exponentially; 0: no smoothing; default: 1/40 "
                   "of the longest run")
      ->check(CLI::Range(0.0, 1e9));
  verb->add_option("--title", a->title, "title of the picture");
  verb->add_flag("--log-x", a->log_x, "logarithmic horizontal axis");
  verb->add_flag("--log-y", a->log_y, "logarithmic vertical axis");
  verb->add_flag("--overwrite", a->overwrite, "replace an existing file");
  verb->footer("examples:\n"
               "  pentatron plot runs/a runs/b\n"
               "  pentatron plot runs/* --x tokens --log-y --output comparison.svg\n"
               "  pentatron plot runs/a --y tokens_per_second --smooth 0\n"
               "  pentatron plot runs/moe --y expert_max_load");
  verb->callback([a, &chosen] { chosen = [a] { return run_plot(*a); }; });
}

} // namespace pentatron::cli
