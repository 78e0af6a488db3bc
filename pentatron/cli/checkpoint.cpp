#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/checkpoint/sharded/compare.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/checkpoint/sharded/parity.h"
#include "pentatron/checkpoint/sharded/reader.h"
#include "pentatron/checkpoint/sharded/spares.h"
#include "pentatron/checkpoint/sharded/verify.h"
#include "pentatron/cli/commands.h"
#include "pentatron/cli/files/exit_status.h"

namespace pentatron::cli {

namespace {

namespace fs = std::filesystem;

struct CheckpointArguments {
  std::string folder, other;
  checkpoint::Retention retention;
  bool dry_run = false;
};

int inspect(const CheckpointArguments& a) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(one_checkpoint(a.folder));
  fmt::print("{}\n", dump_json(checkpoint::inspect(manifest), 2));
  return 0;
}

int verify(const CheckpointArguments& a) {
  const fs::path folder = one_checkpoint(a.folder);
  const checkpoint::VerifyReport report = checkpoint::verify(folder);
  for (const std::string& fault : report.faults) fmt::print("{}\n", fault);
  if (!report.ok() && report.repairable)
    fmt::print("try: pentatron checkpoint repair {}\n", folder.string());
  if (report.ok())
    fmt::print("{}: all checksums match ({} tensors, {} bytes in {} files)\n", folder.string(),
               report.tensors, report.bytes, report.files);
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
  return report.lost.empty() ? kExitSuccess : kExitFailure;
}

int prune(const CheckpointArguments& a) {
  const checkpoint::PruneReport report =
      checkpoint::prune_checkpoints(a.folder, a.retention, a.dry_run);
  for (const std::string& name : report.removed)
    fmt::print("{} {}\n", a.dry_run ? "would remove" : "removed", name);
  for (const std::string& name : report.kept) fmt::print("kept {}\n", name);
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
  if (fs::exists(path / checkpoint::kManifestName) || checkpoint::has_spare_manifest(path))
    return path;
  if (const auto name = checkpoint::latest_name(path)) return path / *name;
  const auto all = checkpoint::checkpoints_in(path);
  if (all.empty())
    raise<CheckpointError>("{} contains no checkpoint\n  try: the folder that was given as "
                           "checkpoint.save, or a step_ folder in it",
                           folder);
  return all.front().path;
}

void add_checkpoint(CLI::App& program, Action& chosen) {
  CLI::App* verb = program.add_subcommand(
      "checkpoint", "inspect, verify, compare, repair and remove checkpoints");
  verb->require_subcommand(1);
  auto a = std::make_shared<CheckpointArguments>();
  add(*verb, chosen, "inspect", "print the contents of a checkpoint as JSON", inspect, a)
      ->footer("example: pentatron checkpoint inspect runs/mine/checkpoints/step_00000100");
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
      ->required();
  sub->add_option("--keep-every", a->retention.keep_every,
                  "also keep checkpoints at multiples of this iteration");
  sub->add_flag("--dry-run", a->dry_run, "print what would be removed, and remove nothing");
  sub->footer("example: pentatron checkpoint prune runs/mine/checkpoints --keep 2 --keep-every "
              "1000");
}

} // namespace pentatron::cli
