#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/json.h"
#include "pentatron/base/progress.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/meant_checkpoints.h"
#include "pentatron/checkpoint/sharded/compare.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/sharded/overview.h"
#include "pentatron/checkpoint/sharded/parity.h"
#include "pentatron/checkpoint/sharded/reader.h"
#include "pentatron/checkpoint/sharded/spares.h"
#include "pentatron/checkpoint/sharded/verify.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/files/exit_status.h"
#include "pentatron/cli/files/terminal.h"

namespace pentatron::cli {

namespace {

namespace fs = std::filesystem;

struct CheckpointArguments {
  std::string folder, other;
  checkpoint::Retention retention;
  bool dry_run = false, all = false, json = false;
};

[[noreturn]] void refuse_empty(const fs::path& folder) {
  raise<CheckpointError>(
      "{} {}\n  try: {}", folder.string(), checkpoint::lack_of_checkpoints(folder),
      checkpoint::meant_checkpoints(
          folder, "", "the folder that was given as checkpoint.save, or a step_ folder in it"));
}

/// The model and the length of the run that wrote the checkpoint.
std::vector<std::pair<std::string, std::string>> facts_of(const checkpoint::Manifest& manifest) {
  std::vector<std::pair<std::string, std::string>> facts;
  if (manifest.config_yaml.empty()) return facts;
  trainer::Config config;
  config::Violations ignored; // of another version of the program
  config::apply_yaml(config, manifest.config_yaml, "", ignored);
  const models::ModelConfig& m = config.model;
  facts.emplace_back("model", fmt::format("{}{}, hidden size {}, {}, vocabulary {}, {}",
                                          m.preset.empty() ? "" : m.preset + ": ",
                                          counted(m.num_layers, "layer"), m.hidden_size,
                                          counted(m.num_attention_heads, "attention head"),
                                          m.vocab_size, config::to_string(config.dtype)));
  if (!manifest.state.contains("consumed_samples")) return facts; // weights alone
  const int64_t total = trainer::total_iterations(config.train);
  const auto samples = manifest.state.value("consumed_samples", int64_t{0});
  facts.emplace_back("progress",
                     fmt::format("iteration {} of {}, {} {}, {} tokens",
                                 format_grouped(manifest.iteration), format_grouped(total),
                                 format_grouped(samples), noun_for(samples, "sample"),
                                 format_count(static_cast<double>(samples) *
                                              static_cast<double>(config.train.seq_length))));
  facts.emplace_back("training",
                     fmt::format("{}, lr {:g}, global batch size {}, seq_length {}",
                                 config::to_string(config.optimizer.optimizer), config.optimizer.lr,
                                 config.train.global_batch_size, config.train.seq_length));
  return facts;
}

int inspect(const CheckpointArguments& a) {
  const fs::path folder = one_checkpoint(a.folder);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
  if (a.json) {
    fmt::print("{}\n", dump_json(checkpoint::inspect(manifest), 2));
  } else {
    fmt::print("{}\n{}", folder.string(),
               folded_for_terminal(
                   checkpoint::overview(manifest, {.all = a.all, .facts = facts_of(manifest)})));
  }
  return 0;
}

/// Bytes that verify() reads; 0 if the manifest cannot be read, which verify() says.
int64_t bytes_to_verify(const fs::path& folder) {
  uint64_t bytes = 0;
  try {
    const checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
    for (const auto& [name, file] : manifest.files) bytes += file.bytes;
    for (const auto& [name, parity] : manifest.parity) bytes += parity.file.bytes;
  } catch (const Error&) {
    return 0;
  }
  return static_cast<int64_t>(bytes);
}

/// Reads the checkpoints beside it if it cannot be repaired.
void print_remedy(const checkpoint::VerifyReport& report, const fs::path& folder) {
  Progress progress("looking for an intact checkpoint", 0);
  std::atomic<int64_t> steps{0};
  const std::string remedy = checkpoint::remedy_for(
      report, folder, {.scope = checkpoint::VerifyScope::kWhole, .damaged = {}, .progress = [&] {
                         progress.update(++steps);
                       }});
  progress.clear();
  if (!remedy.empty()) fmt::print("  try: {}\n", remedy);
}

int verify(const CheckpointArguments& a) {
  const fs::path folder = one_checkpoint(a.folder);
  Progress progress("verifying", bytes_to_verify(folder), {.unit = Progress::Unit::kBytes});
  std::atomic<uint64_t> done{0};
  const checkpoint::VerifyReport report =
      checkpoint::verify(folder, checkpoint::VerifyScope::kWhole, {}, [&](uint64_t bytes) {
        progress.update(static_cast<int64_t>(done += bytes));
      });
  progress.clear();
  for (const std::string& fault : report.faults) fmt::print("{}\n", fault);
  if (!report.ok()) print_remedy(report, folder);
  if (report.ok())
    fmt::print("{}: all checksums match ({}, {} bytes in {})\n", folder.string(),
               counted(static_cast<int64_t>(report.tensors), "tensor"), report.bytes,
               counted(static_cast<int64_t>(report.files), "file"));
  return report.ok() ? kExitSuccess : kExitFailure;
}

int diff(const CheckpointArguments& a) {
  checkpoint::CheckpointReader first(one_checkpoint(a.folder)), second(one_checkpoint(a.other));
  const checkpoint::CheckpointDifference difference = checkpoint::diff(first, second);
  fmt::print("{}", checkpoint::to_text(difference));
  return difference.same() ? kExitSuccess : kExitFailure;
}

int repair(const CheckpointArguments& a) {
  const fs::path folder = one_checkpoint(a.folder);
  const checkpoint::RepairReport report = checkpoint::repair_checkpoint(folder);
  for (const std::string& name : report.repaired) fmt::print("rebuilt {}\n", name);
  for (const std::string& text : report.lost) fmt::print("cannot be repaired: {}\n", text);
  if (report.repaired.empty() && report.lost.empty())
    fmt::print("{}: nothing to repair\n", folder.string());
  if (report.lost.empty()) return kExitSuccess;
  print_remedy({}, folder);
  return kExitFailure;
}

int prune(const CheckpointArguments& a) {
  if (a.retention.keep_last == 0 && a.retention.keep_every > 0)
    raise<ConfigError>(
        "--keep-every {} has no effect with --keep 0, which keeps all checkpoints\n  "
        "try: --keep 1",
        a.retention.keep_every);
  const fs::path folder =
      fs::path(a.folder).has_filename() ? fs::path(a.folder) : fs::path(a.folder).parent_path();
  if (fs::exists(folder / checkpoint::kManifestName)) // one checkpoint
    raise<CheckpointError>(
        "{} is one checkpoint, but prune needs the folder of a run's checkpoints\n"
        "  try: pentatron checkpoint prune {} --keep {}",
        a.folder, folder.has_parent_path() ? shell_word(folder.parent_path().string()) : ".",
        a.retention.keep_last);
  if (checkpoint::checkpoints_in(a.folder).empty()) refuse_empty(a.folder);
  const checkpoint::PruneReport report =
      checkpoint::prune_checkpoints(a.folder, a.retention, a.dry_run);
  for (const std::string& name : report.removed)
    fmt::print("{} {}\n", a.dry_run ? "would remove" : "removed", name);
  for (const std::string& name : report.kept) fmt::print("kept {}\n", name);
  for (const std::string& name : report.foreign)
    fmt::print("kept {}, which is not a file of a checkpoint\n", name);
  for (const std::string& name : report.damaged) fmt::print("skipped, corrupted: {}\n", name);
  return 0;
}

CLI::App* add(CLI::App& verb, Action& chosen, const char* name, const char* about,
              int (*action)(const CheckpointArguments&), std::shared_ptr<CheckpointArguments> a) {
  CLI::App* sub = verb.add_subcommand(name, about);
  sub->add_option("folder", a->folder,
                  action == prune ? "a run's checkpoint folder (checkpoint.save)"
                                  : "a checkpoint, or a run's checkpoint folder (checkpoint.save) "
                                    "for its latest checkpoint")
      ->required();
  sub->callback([a, action, &chosen] { chosen = [a, action] { return action(*a); }; });
  return sub;
}

} // namespace

fs::path one_checkpoint(const std::string& folder) {
  const fs::path path = folder;
  const auto is_one = [](const fs::path& one) {
    return fs::exists(one / checkpoint::kManifestName) || checkpoint::has_spare_manifest(one);
  };
  if (is_one(path)) return path;
  if (const auto name = checkpoint::latest_name(path)) return path / *name;
  for (const checkpoint::CheckpointFolder& one : checkpoint::saved_in(path))
    if (is_one(one.path) || !fs::exists(one.path / "config.json")) return one.path;
  // hf/step_00000010 or hf beside the checkpoints that were exported
  const bool all = std::ranges::any_of(
      checkpoint::checkpoints_in(path),
      [](const checkpoint::CheckpointFolder& one) { return fs::exists(one.path / "config.json"); });
  const fs::path run = all ? path.parent_path() : path.parent_path().parent_path();
  if (all || fs::exists(path / "config.json"))
    raise<CheckpointError>(
        "{} is exported for other programs and is not a checkpoint\n  try: {}", folder,
        checkpoint::saved_in(run).empty() ? "the folder that was given as checkpoint.save"
                                          : run.string());
  refuse_empty(path);
}

void add_checkpoint(CLI::App& program, Action& chosen) {
  CLI::App* verb = program.add_subcommand(
      "checkpoint", "inspect, verify, compare, repair and remove checkpoints");
  verb->require_subcommand(1);
  auto a = std::make_shared<CheckpointArguments>();
  CLI::App* inspected =
      add(*verb, chosen, "inspect", "show what a checkpoint contains", inspect, a);
  CLI::Option* json = inspected->add_flag("--json", a->json, "print everything as JSON");
  inspected->add_flag("--all", a->all, "list every tensor and every file; --json always does")
      ->excludes(json);
  inspected->footer("examples:\n"
                    "  pentatron checkpoint inspect runs/mine/checkpoints\n"
                    "  pentatron checkpoint inspect runs/mine/checkpoints/step_00000100 --json");
  add(*verb, chosen, "verify",
      "read a checkpoint completely and compare its checksums; exit status 0 if all match", verify,
      a)
      ->footer("example: pentatron checkpoint verify runs/mine/checkpoints");
  CLI::App* sub = add(*verb, chosen, "diff",
                      "list the tensors that differ between two checkpoints, and by how much; exit "
                      "status 0 if none differ",
                      diff, a);
  sub->add_option("other", a->other, "checkpoint to compare with, saved in any parallel layout")
      ->required();
  sub->footer("example: pentatron checkpoint diff runs/a/step_00000100 runs/b/step_00000100");
  add(*verb, chosen, "repair",
      "rebuild lost and corrupted shards from parity files; exit status 0 if nothing is lost",
      repair, a)
      ->footer("Save checkpoints with checkpoint.parity=1 or more to get parity files.\nexample: "
               "pentatron checkpoint repair runs/mine/checkpoints/step_00000100");
  sub = add(*verb, chosen, "prune", "remove old checkpoints; the latest checkpoint is always kept",
            prune, a);
  sub->add_option("--keep", a->retention.keep_last, "number of latest checkpoints to keep; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->required();
  sub->add_option("--keep-every", a->retention.keep_every,
                  "also keep checkpoints at multiples of this iteration")
      ->check(CLI::NonNegativeNumber);
  sub->add_flag("--dry-run", a->dry_run, "print what would be removed, and remove nothing");
  sub->footer("example: pentatron checkpoint prune runs/mine/checkpoints --keep 2 --keep-every "
              "1000");
}

} // namespace pentatron::cli
