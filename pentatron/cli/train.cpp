#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/log.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/files/terminal.h"
#include "pentatron/cli/ranks.h"
#include "pentatron/cli/training.h"
#include "pentatron/trainer/check_run.h"
#include "pentatron/trainer/checkpoint_export.h"
#include "pentatron/trainer/checkpoint_space.h"
#include "pentatron/trainer/exchange_plan.h"
#include "pentatron/trainer/memory_plan.h"
#include "pentatron/trainer/metrics/train_log.h"
#include "pentatron/trainer/offload.h"
#include "pentatron/trainer/recompute.h"
#include "pentatron/trainer/run_identity.h"
#include "pentatron/trainer/runtime.h"
#include "pentatron/trainer/train.h"

namespace pentatron::cli {

namespace {

struct TrainArguments {
  std::vector<std::string> config;
  std::string hf;
  bool dry_run = false;
  RankArguments ranks;
};

void print_report(const trainer::TrainReport& report) {
  std::string text = fmt::format("\niterations   {}\n", report.iterations);
  const auto line = [&](const char* what, const std::filesystem::path& path) {
    if (!path.empty()) text += fmt::format("{:<12} {}\n", what, path.string());
  };
  const trainer::Scores& terms = report.last_terms;
  if (report.last_loss)
    text += fmt::format(
        "loss         {:.4f}{}\n", *report.last_loss,
        terms.empty() ? "" : fmt::format(" ({})", trainer::figures_text(*report.last_loss, terms)));
  if (report.validation)
    text += fmt::format("validation   {} ({})\n",
                        report.validation->loss ? fmt::format("{:.4f}", *report.validation->loss)
                                                : "undefined",
                        trainer::figures_text(report.validation->loss, report.validation->figures));
  if (report.unigram_entropy)
    text += fmt::format("unigram      {:.4f} ({} of a model that only knows token frequencies)\n",
                        *report.unigram_entropy, terms.empty() ? "loss" : terms.front().first);
  line("metrics", report.metrics);
  line("plot", report.plot);
  line("checkpoint", report.checkpoint);
  write_out(text);
}

std::string why_stopped(trainer::StopReason reason, const trainer::TrainConfig& train) {
  if (reason == trainer::StopReason::kExitInterval)
    return fmt::format("by train.exit_interval={}", train.exit_interval);
  if (reason == trainer::StopReason::kDuration)
    return fmt::format("by train.exit_duration_in_mins={}", train.exit_duration_in_mins);
  return "by a signal";
}

/// How to make what the run could not save, whose reason may have a remedy of its own.
std::string remedy_for(const trainer::FailedSave& failed, const trainer::Config& config) {
  const std::filesystem::path save = config.checkpoint.save,
                              name = checkpoint::step_name(failed.iteration);
  std::string remedy;
  if (failed.what == "checkpoint")
    remedy = fmt::format("checkpoint.load=auto with the same configuration, once {} can be written",
                         save.string());
  else if (config.peft.on())
    remedy = fmt::format("--adapter {}, which contains the same adapters",
                         shell_word((save / name).string()));
  else
    remedy =
        fmt::format("pentatron convert {} {} --format hf{}", shell_word((save / name).string()),
                    shell_word((save / trainer::kExportFolder / name).string()),
                    config.checkpoint.export_weights == optim::WeightsKind::kEma ? " --ema" : "");
  return failed.remedy.empty() ? remedy : fmt::format("{}, or {}", remedy, failed.remedy);
}

using AfterTraining = std::function<void(const trainer::TrainReport&)>;

/// The ranks of the machine of this process.
trainer::LocalRanks local_ranks(const Ranks& ranks) {
  const bool threads = ranks.start == Ranks::Start::kInProcess;
  const int here = ranks.start == Ranks::Start::kLaunched ? ranks.launch.local_size : ranks.size;
  return {.ranks = here, .processes = threads ? 1 : here};
}

/// One rank's whole run.
void train_rank(const trainer::Config& config, const comm::Group& world,
                const AfterTraining& after) {
  const bool main_rank = world.rank() == 0;
  auto folders = std::make_unique<trainer::RunFolders>(config, world);
  // A run without steps writes nothing into the folder of a run.
  const RankLog rank_log(trainer::total_iterations(config.train) > 0 ? config.logger.dir : "",
                         world);
  trainer::Trainer trainer(config, world, std::move(folders));
  const trainer::TrainReport report =
      trainer.run({.progress_bar = true, .version = program_version()});
  const bool stopped = report.reason != trainer::StopReason::kFinished;
  if (stopped && report.steps == 0)
    log::info("stopped {} before iteration {}; there is nothing new to save",
              why_stopped(report.reason, config.train), report.iterations + 1);
  else if (stopped)
    log::info("stopped {} after iteration {}{}", why_stopped(report.reason, config.train),
              report.iterations,
              config.checkpoint.save.empty() ? "; not saved, because checkpoint.save is empty"
                                             : "");
  if (report.steps == 0 && report.iterations > 0 && !stopped && !report.validation)
    log::info("nothing to do: the run has already reached its last iteration, {}",
              report.iterations);
  if (report.steps > 0 && !report.trained)
    log::shared_warning("nothing was trained: all {} iterations of this run were skipped",
                        report.steps);
  if (main_rank) print_report(report);
  if (main_rank && after && report.reason == trainer::StopReason::kFinished) after(report);
  if (report.unsaved)
    raise<CheckpointError>("the run has ended, but {}\n  try: {}", report.unsaved->text,
                           remedy_for(*report.unsaved, config));
}

/// Shows what the run needs, and refuses what this machine does not have. Of several processes one
/// does so for its machine, before any of them takes memory.
void tell_limits(trainer::Config config, const Ranks& ranks, bool dry_run) {
  if (ranks.supervised || ranks.launch.local_rank > 0) return;
  trainer::check_threads(config.train.num_threads);
  const trainer::LocalRanks local = local_ranks(ranks);
  const std::optional<int64_t> free_bytes = trainer::free_bytes_of(config.device);
  const trainer::RecomputeChoice choice =
      trainer::choose_recomputation(config, ranks.size, local, free_bytes);
  const trainer::MemoryPlan plan = trainer::plan_memory(config, ranks.size, local);
  if (ranks.launch.rank == 0) {
    std::string table = trainer::describe_limits(config, plan, free_bytes);
    if (!choice.line.empty()) table += "\n" + choice.line;
    for (const std::string& line :
         {trainer::describe_exchange(config, ranks.size), trainer::describe_disk(config, plan),
          trainer::describe_checkpoints(config, plan)})
      if (!line.empty()) table += "\n" + line;
    if (dry_run) {
      fmt::print("{}\n", table);
      std::fflush(stdout); // before what follows on standard error
    } else {
      log::info("{}", table);
    }
    if (const std::string text = trainer::checkpoint_space_warning(config, plan); !text.empty())
      log::warning("{}", text);
  }
  if (free_bytes && config.train.check_memory)
    trainer::require_memory(config, ranks.size, local, *free_bytes);
  if (ranks.launch.rank == 0 && !choice.warning.empty()) log::warning("{}", choice.warning);
  trainer::require_disk(config, plan);
}

/// The sections of a configuration, and how to read about their keys.
std::string sections_help() {
  std::string text = "Sections of the configuration (pentatron config help SECTION lists the keys "
                     "of one, pentatron config help WORD searches):\n";
  for (const config::SectionInfo& section : config::list_sections<trainer::Config>())
    text += fmt::format("  {:<14} {}\n", section.name, section.help);
  std::string top;
  for (const config::FieldInfo& field : config::list_fields<trainer::Config>())
    if (field.path.find('.') == std::string::npos) top += (top.empty() ? "" : ", ") + field.path;
  return text + fmt::format("  {:<14} {}\n", "top level", top);
}

/// A run that is resumed goes on from the model that it began with, whatever --hf names. Before the
/// configuration is read, whose other keys would be blamed.
void check_resumed(const std::string& hf, const ConfigArguments& split) {
  trainer::Config config;
  config.checkpoint.load = std::string(kHfPrefix) + hf;
  config::Violations ignored;
  for (const std::string& file : split.files) config::apply_file(config, file, ignored);
  for (const std::string& text : split.overrides) config::apply_override(config, text, ignored);
  const trainer::CheckpointConfig& c = config.checkpoint;
  if (c.load == std::string(kHfPrefix) + hf || c.load.empty()) return;
  if (trainer::foreign_model(c) || c.finetune)
    raise<ConfigError>("--hf {0} and checkpoint.load={1} both name a model to start from\n  try: "
                       "checkpoint.load=hf:{0}, or remove --hf",
                       hf, c.load);
  const std::filesystem::path run = trainer::loads_own(c) ? c.save : c.load;
  const auto latest = checkpoint::latest_name(run);
  const std::filesystem::path folder = latest ? run / *latest : run;
  if (!std::filesystem::exists(folder / checkpoint::kManifestName)) return;
  if (const auto other = trainer::started_from_another(folder, hf))
    raise<ConfigError>("checkpoint.load={} resumes a run that started from {}, not from --hf {}\n  "
                       "try: remove --hf",
                       c.load, other->empty() ? "new weights" : *other, hf);
}

/// What a file or folder that is no configuration is for: "dataset.path=x.jsonl"; empty: it may be
/// a configuration.
std::string meant_by(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const std::string word = shell_word(path.string()), extension = path.extension();
  const auto has = [&](const char* name) { return fs::exists(path / name, error); };
  if (fs::is_directory(path, error)) {
    if (has("latest") || has(checkpoint::kManifestName)) return "checkpoint.load=" + word;
    if (has("checkpoints")) return "checkpoint.load=" + shell_word((path / "checkpoints").string());
    return (has("config.json") ? "--hf " : "dataset.path=") + word;
  }
  if (!fs::exists(path, error)) return {};
  if (extension == ".gguf") return "checkpoint.load=" + word;
  if (extension == ".bin" || extension == ".idx")
    return "dataset.type=indexed dataset.path=" +
           shell_word((path.parent_path() / path.stem()).string());
  if (path.filename() == "config.json")
    return "--hf " + shell_word(path.has_parent_path() ? path.parent_path().string() : ".");
  static constexpr std::array kData = {".jsonl", ".parquet", ".tsv", ".gz", ".zst"};
  return std::ranges::find(kData, extension) != kData.end() ? "dataset.path=" + word : "";
}

void check_files(const std::vector<std::string>& files) {
  for (const std::string& file : files)
    if (const std::string meant = meant_by(file); !meant.empty())
      raise<ConfigError>("{} is not a configuration file\n  try: {}", file, meant);
}

/// The configuration of a run. With `hf` it is one of that model, and starts from its weights
/// unless checkpoint.load names a run to resume.
trainer::Config run_config(const std::string& hf, ConfigArguments split, int world_size) {
  check_files(split.files);
  if (hf.empty()) return trainer::load_config(split.files, split.overrides, {}, world_size);
  const std::string source = std::string(kHfPrefix) + hf;
  check_resumed(hf, split);
  trainer::Config base;
  base.model = naming("--hf ", hf,
                      [&] { return checkpoint::read_hf_config(resolve_model_path(hf)).config; });
  base.checkpoint.load = source;
  trainer::Config config = trainer::load_config(split.files, split.overrides, base, world_size);
  if (trainer::loads_own(config.checkpoint) && !checkpoint::latest_name(config.checkpoint.save)) {
    split.overrides.push_back("checkpoint.load=" + source); // there is nothing to resume yet
    config = trainer::load_config(split.files, split.overrides, base, world_size);
  }
  return config;
}

int train(const TrainArguments& arguments) {
  Ranks ranks = find_ranks(arguments.ranks, /*starts=*/!arguments.dry_run);
  return train_on_ranks(run_config(arguments.hf, split_arguments(arguments.config), ranks.size),
                        ranks, arguments.dry_run);
}

} // namespace

int train_on_ranks(const trainer::Config& config, Ranks& ranks, bool dry_run,
                   const AfterTraining& after) {
  std::signal(SIGPIPE, SIG_IGN); // a reader of the log that has gone does not end the run
  tell_limits(config, ranks, dry_run);
  if (dry_run) {
    if (!ranks.supervised && ranks.launch.rank == 0) trainer::check_run(config, ranks.size);
    return 0;
  }
  const char* const answer = trainer::stopping_text(!config.checkpoint.save.empty());
  ranks.acknowledgement = answer;
  // Of several processes one answers: that which starts the others, else rank 0.
  const bool speaks = !ranks.supervised && ranks.launch.rank == 0;
  if (ranks.start != Ranks::Start::kSupervised)
    trainer::install_signal_handlers(speaks ? answer : nullptr);
  return run_ranks(ranks, config,
                   [&](const comm::Group& world) { train_rank(config, world, after); });
}

void add_train(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* verb = program.add_subcommand("train", "train a model");
  verb->add_option("config", arguments->config,
                   "YAML files and key=value settings; later ones override earlier ones, and "
                   "settings override files");
  verb->add_option("--hf", arguments->hf,
                   "start from this Hugging Face model: a folder, or ORG/NAME of a downloaded one; "
                   "same as checkpoint.load=hf:DIR");
  verb->add_flag("--dry-run", arguments->dry_run,
                 "check the configuration, print the required memory, open the data, the tokenizer "
                 "and the checkpoint, check that the folders are free, and exit; writes nothing");
  add_rank_options(*verb, arguments->ranks);
  verb->footer(sections_help() +
               "examples:\n"
               "  pentatron train examples/quickstart.yaml train.train_iters=500\n"
               "  pentatron train base.yaml large.yaml optimizer.lr=1e-4   (base.yaml, changed by "
               "large.yaml)\n"
               "  pentatron train my.yaml checkpoint.save=run checkpoint.load=run   (resume)\n"
               "  pentatron train my.yaml --ranks 4 parallel.tensor_model_parallel_size=2   (4 "
               "ranks: 2 tensor x 2 data)\n"
               "  pentatron train my.yaml checkpoint.load=run train.train_iters=0 "
               "train.eval_interval=1   (only evaluate)");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return train(*arguments); }; });
}

} // namespace pentatron::cli
