#include "pentatron/checkpoint/read_model.h"

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/checkpoint/run_checkpoint.h"
#include "pentatron/checkpoint/sharded/folders.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/comm/long_work.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

/// The newest checkpoint with whole weights, on every rank; empty: none.
fs::path find_whole(const fs::path& given, const KnownDamage& damaged, const comm::Group& world) {
  std::string found;
  const auto look = [&] {
    const comm::LongWork work(world, "looking for a checkpoint in " + given.string());
    const auto newest = newest_checkpoint(given, {.scope = VerifyScope::kWeightsStructure,
                                                  .damaged = damaged,
                                                  .progress = [&] { work.progress(); }});
    if (newest) found = newest->folder.string();
  };
  comm::together<CheckpointError>(world, world.rank() == 0, look);
  return comm::broadcast_text(found, 0, world);
}

/// The first fault of a checkpoint's weights, of which each rank reads a share; empty: none.
std::string fault_of_weights(const fs::path& folder, const comm::Group& world) {
  const comm::LongWork work(world, "checking " + folder.string());
  const VerifyReport report = verify(folder, VerifyScope::kWeights, [&] { work.progress(); }, {},
                                     {.part = world.rank(), .of = world.size()});
  for (std::string& fault : comm::gather_text(report.ok() ? "" : report.faults[0], world))
    if (!fault.empty()) return std::move(fault);
  return "";
}

} // namespace

void read_model(const std::string& where, const fs::path& opened, const comm::Group& world,
                const std::function<void(ModelSource&)>& read, ModelPurpose purpose) {
  KnownDamage damaged;
  const std::optional<std::string> average = after_average_prefix(where);
  const fs::path given = average.value_or(where);
  // A run may have saved another checkpoint while the ranks looked for one.
  fs::path folder =
      world.size() > 1 ? comm::broadcast_text(opened.string(), 0, world) : opened.string();
  while (true) {
    const comm::LongWork work(world, "reading " + folder.string());
    const auto source = open_model(average ? averaged(folder.string()) : folder.string(), purpose);
    source->on_progress([&] { work.progress(); });
    if (source->format() != ModelFormat::kPentatron || folder == given) return read(*source);
    std::string why;
    try {
      return read_together(world, [&] { read(*source); });
    } catch (const DamagedCheckpoint& error) {
      why = error.what();
    }
    // An error in what was done with the weights is not damage.
    damaged[folder] = fault_of_weights(folder, world);
    if (damaged[folder].empty()) throw CheckpointError(why);
    const fs::path next = find_whole(given, damaged, world);
    if (next.empty()) throw CheckpointError(why);
    if (world.rank() == 0)
      log::warning("{}: {}; using {} instead", folder.filename().string(), damaged[folder],
                   next.string());
    folder = next;
  }
}

} // namespace pentatron::checkpoint
