// The checkpoint of a run to resume from, for all its ranks.
#include <map>
#include <set>
#include <string>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/checkpoint/machines.h"
#include "pentatron/checkpoint/run_checkpoint.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/comm/long_work.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

/// The damaged checkpoints that a repair can mend. Every rank reads a share of them.
std::set<fs::path> repairable_of(const KnownDamage& damaged, const comm::Group& world) {
  std::set<fs::path> found;
  for (const auto& [folder, why] : damaged) {
    const comm::LongWork work(world, "checking " + folder.string());
    const VerifyReport own = verify(folder, VerifyScope::kWhole, [&] { work.progress(); }, {},
                                    {.part = world.rank(), .of = world.size()});
    Json names = Json::array();
    for (const auto& [name, fault] : own.first_faults) names.push_back(name);
    std::map<std::string, std::string> faults;
    const std::string told = names.dump(-1, ' ', false, Json::error_handler_t::replace);
    for (const std::string& theirs : comm::gather_text(told, world))
      for (const Json& name : parse_json(theirs, "a rank's report"))
        faults.emplace(name.get<std::string>(), "");
    if (!faults.empty() && repair_suffices(folder, faults)) found.insert(folder);
  }
  return found;
}

} // namespace

std::optional<FoundCheckpoint> find_run(const fs::path& dir, const comm::Group& world,
                                        bool node_local, const KnownDamage& damaged) {
  if (node_local) return find_on_machines(dir, world, damaged);
  const std::set<fs::path> repairable = repairable_of(damaged, world);
  std::optional<FoundCheckpoint> found;
  const auto look = [&] {
    const comm::LongWork work(world, "looking for a checkpoint in " + dir.string());
    found = newest_checkpoint(dir, {.scope = VerifyScope::kStructure,
                                    .damaged = damaged,
                                    .repairable = repairable,
                                    .progress = [&] { work.progress(); },
                                    .key = "checkpoint.load="});
  };
  comm::together<CheckpointError>(world, world.rank() == 0, look);
  const auto tell = [&](const std::string& text) { return comm::broadcast_text(text, 0, world); };
  const std::string folder = tell(found ? found->folder.string() : "");
  const std::string passed_over = tell(found ? found->passed_over : "");
  if (folder.empty()) return std::nullopt;
  return FoundCheckpoint{folder, passed_over};
}

} // namespace pentatron::checkpoint
